"""Budgets of end users and tags over HTTP, from the member's call that sets one to the 402 of a request."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from admin import users as admin_users
from admin.logins import create_admin_token
from tests.support.api_process import MODEL, Api, api_process
from tests.support.tenancy import ADMIN, PEPPER

BODY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Say something about water."}],
    "max_tokens": 20,
}


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_process(pg_url, redis_url, tmp_path) as made:
        yield made


async def set_budget(api: Api, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    owner = await admin_users.create_user(
        api.database, ADMIN, email=f"{uuid4().hex}@example.com", password="correct horse battery",
        role="tenant_owner", tenant_id=api.organisation.tenant_id,
    )  # fmt: skip
    token = await create_admin_token(api.database, ADMIN, pepper=PEPPER, user_id=owner.id, name="t")
    url = f"{api.url}/v1/organization/budgets/{path}"
    async with api.session.put(url, json=body, headers={"Authorization": f"Bearer {token.secret}"}) as answer:
        assert answer.status == 200, await answer.text()
        found: list[dict[str, Any]] = await answer.json()
        return found


async def test_each_end_user_is_stopped_by_its_own_budget(api: Api) -> None:
    await set_budget(api, "end_user", {"budget_usd": "0.000250"})
    ada, bob = BODY | {"safety_identifier": "ada/1"}, BODY | {"user": "bob"}
    assert (await api.post(ada))[0] == 200
    [row] = await api.usage_rows(1)
    status, refused, headers = await api.post(ada | {"max_tokens": 130})
    assert status == 402
    assert (refused["error"]["type"], refused["error"]["code"]) == ("insufficient_quota",) * 2
    assert refused["error"]["message"].startswith("the monthly budget of the end user 'ada/1' does not cover")
    details = refused["error"]["details"]
    assert (details["reason"], details["budget_scope"], details["end_user"]) == (
        "budget_exceeded", "end_user", "ada/1",
    )  # fmt: skip
    assert headers["x-should-retry"] == "false"
    assert (await api.post(bob))[0] == 200
    assert (await api.post(BODY | {"max_tokens": 200}))[0] == 200
    listed = await set_budget(api, "end_user/ada%2F1", {"budget_usd": "5"})
    assert [(one["scope"], one["name"]) for one in listed] == [
        ("every_end_user", None),
        ("end_user", "ada/1"),
    ]
    assert int(float(listed[1]["spent_this_month_usd"]) * 1e12 + 0.5) == row.cost
    assert (await api.post(ada | {"max_tokens": 130}))[0] == 200
    await api.usage_rows(4)


async def test_a_tag_is_stopped_by_its_budget(api: Api) -> None:
    await set_budget(api, "tag/tag_team=blue", {"budget_usd": "0"})
    status, refused, _ = await api.post(BODY | {"metadata": {"tag_team": "blue"}})
    assert (status, refused["error"]["details"]["tag"]) == (402, "tag_team=blue")
    assert (await api.post(BODY | {"metadata": {"tag_team": "red"}}))[0] == 200
