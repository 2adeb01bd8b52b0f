"""The life of a model as its users meet it: aliases, headers, GET /v1/models, retirement, replacement, notices."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from sqlalchemy import text

from admin import keys as admin_keys
from admin import model_life as admin_life
from admin import models as admin_models
from admin import prices as admin_prices
from tests.support.api_process import MODEL, Api, api_process
from tests.support.clock import ManualClock
from tests.support.tenancy import ADMIN, PEPPER, make_organisation, member

HELLO = [{"role": "user", "content": "Say something about water."}]
OTHER = "llama-3.3-70b"
DATE = datetime(2999, 1, 1, tzinfo=UTC)
SUNSET = "Tue, 01 Jan 2999 00:00:00 GMT"
LINK = f'</v1/models/{MODEL}>; rel="successor-version"'


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    """A process that serves MODEL, and offers OTHER at ten times its price."""
    async with api_process(pg_url, redis_url, tmp_path) as made:
        await admin_models.add_model(made.database, ADMIN, name=OTHER)
        await admin_prices.set_price(made.database, ADMIN, model=OTHER, input="10", output="20")
        yield made


async def ask(api: Api, model: str, **fields: Any) -> tuple[int, dict[str, Any], Any]:
    return await api.post({"model": model, "messages": HELLO, "max_tokens": 2, **fields})


async def test_an_alias_changes_between_two_requests(api: Api) -> None:
    """The answer, the usage row and the price are of the model that served, and so are the key's permissions."""
    await admin_models.set_alias(api.database, ADMIN, name="fast", target=OTHER)
    await api.deps.models.refresh()
    assert (await ask(api, "fast"))[1]["error"]["code"] == "model_offline"
    await admin_models.set_alias(api.database, ADMIN, name="fast", target=MODEL)
    await api.deps.models.refresh()
    status, body, headers = await ask(api, "fast")
    assert (status, body["model"]) == (200, MODEL)
    assert not {"deprecation", "sunset", "link"} & {name.lower() for name in headers}
    stream = await api.openai().chat.completions.create(
        model="fast", messages=HELLO, max_tokens=2, stream=True
    )
    assert {event.model async for event in stream} == {MODEL}
    for row in await api.usage_rows(2):
        assert row.model == MODEL
        assert row.cost == (row.input_tokens - row.cached_input_tokens) * 1_000_000 + (
            row.cached_input_tokens * 500_000 + row.output_tokens * 2_000_000
        )
    limited = await admin_keys.create_key(
        api.database, ADMIN, pepper=PEPPER, tenant_id=api.organisation.tenant_id,
        project_id=api.organisation.project_id, name="other", allowed_models=[OTHER],
    )  # fmt: skip
    refused = await api.post({"model": "fast", "messages": HELLO}, key=limited.secret)
    assert (refused[0], refused[1]["error"]["code"]) == (403, "model_not_allowed")


async def test_users_are_told_the_date_and_then_the_model_is_gone(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(DATE.replace(year=2998))
    monkeypatch.setattr(api.deps.models, "_today", clock.now)
    await admin_models.set_alias(api.database, ADMIN, name="fast", target=MODEL)
    going = await admin_life.deprecate_model(
        api.database, ADMIN, name=MODEL, retires_at="2999-01-01", replacement=OTHER, note="It is slow"
    )
    await api.deps.models.refresh()
    assert going.deprecated_at is not None
    since = int(going.deprecated_at.timestamp())
    link = f'</v1/models/{OTHER}>; rel="successor-version"'
    for model in (MODEL, "fast"):
        for stream in (False, True):
            answer = await api.session.post(
                f"{api.url}/v1/chat/completions",
                headers={"Authorization": f"Bearer {api.organisation.key}"},
                json={"model": model, "messages": HELLO, "max_tokens": 2, "stream": stream},
            )
            async with answer:
                assert answer.status == 200
                told = [answer.headers[name] for name in ("deprecation", "sunset", "link")]
                assert told == [f"@{since}", SUNSET, link]
                await answer.read()
    client = api.openai()
    entry = await client.models.with_raw_response.retrieve("fast")
    assert entry.headers["sunset"] == SUNSET
    listed = {model.id: model.to_dict() async for model in client.models.list()}
    assert listed[MODEL]["status"] == "deprecated"
    assert listed[MODEL]["deprecation"] == {
        "deprecated_at": since, "retires_at": int(DATE.timestamp()), "replacement": OTHER,
        "answered_by_replacement": False, "note": "It is slow",
    }  # fmt: skip
    assert listed[OTHER]["deprecation"] is None

    clock.advance((DATE - clock.now()).total_seconds())
    for model in (MODEL, "fast"):
        status, body, headers = await ask(api, model)
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_retired", "model")
        assert f"Use '{OTHER}' instead. It is slow" in body["error"]["message"]
        assert body["error"]["details"]["replacement"] == OTHER
        assert headers["link"] == link
    with pytest.raises(openai.NotFoundError) as gone:
        await client.models.retrieve(MODEL)
    assert gone.value.code == "model_retired"
    with pytest.raises(anthropic.NotFoundError):
        await api.anthropic().messages.create(model=MODEL, max_tokens=2, messages=HELLO)
    assert [model.id async for model in client.models.list()] == [OTHER]
    assert len(await api.usage_rows(4)) == 4, "usage stays"


async def test_a_retired_name_is_answered_by_its_replacement(api: Api) -> None:
    await admin_life.replace_model(api.database, ADMIN, name=OTHER, replacement=MODEL)
    await api.deps.models.refresh()
    status, body, headers = await ask(api, OTHER)
    assert (status, body["model"], headers["link"]) == (200, MODEL, LINK)
    assert "sunset" in headers
    [row] = await api.usage_rows(1)
    assert row.model == MODEL
    message = await api.anthropic().messages.with_raw_response.create(
        model=OTHER, max_tokens=2, messages=HELLO
    )
    assert ((await message.parse()).model, message.headers["link"]) == (MODEL, LINK)
    assert [model.id async for model in api.openai().models.list()] == [MODEL]
    entry = await api.openai().models.retrieve(OTHER)
    assert (entry.id, entry.to_dict()["aliases"]) == (MODEL, [OTHER])


async def test_a_retired_model_is_unknown_to_a_key_that_may_not_use_it(api: Api) -> None:
    await admin_life.retire_model(api.database, ADMIN, name=OTHER)
    await api.deps.models.refresh()
    for kind in ("live", "test"):
        limited = await admin_keys.create_key(
            api.database, ADMIN, pepper=PEPPER, tenant_id=api.organisation.tenant_id,
            project_id=api.organisation.project_id, name=kind, kind=kind, allowed_models=[MODEL],
        )  # fmt: skip
        for model in (OTHER, "llama-9"):
            status, body, headers = await api.post({"model": model, "messages": HELLO}, key=limited.secret)
            assert (status, body["error"]["code"]) == (404, "model_not_found")
            assert body["error"]["message"].startswith(f"There is no model '{model}'.")
            assert not {"deprecation", "sunset", "link"} & {name.lower() for name in headers}
        with pytest.raises(openai.NotFoundError) as unknown:
            await api.openai(limited.secret).models.retrieve(OTHER)
        assert unknown.value.code == "model_not_found"
    assert (await ask(api, OTHER))[1]["error"]["code"] == "model_retired"


async def test_organisations_that_used_the_model_are_told_once(api: Api) -> None:
    other = await make_organisation(api.database, "Lumen")
    assert (await ask(api, MODEL))[0] == 200
    await api.usage_rows(1)

    async def notices() -> list[Any]:
        async with api.database.read() as connection:
            found = await connection.execute(
                text(
                    "SELECT tenant_id, kind, body FROM notices WHERE kind LIKE 'model.%' ORDER BY created_at, id"
                )
            )
            return [tuple(row) for row in found]

    for _ in range(2):
        await admin_life.deprecate_model(api.database, ADMIN, name=MODEL, retires_at="2999-01-01")
    mine = api.organisation.tenant_id
    assert await notices() == [
        (
            mine,
            "model.deprecated",
            f"{MODEL} is deprecated. It answers until 2999-01-01 00:00 UTC. From then on requests for it get 404 "
            "model_retired.",
        )
    ]
    endings = await admin_life.endings_of(api.database, member(mine))
    assert [(one.model, one.retires_at) for one in endings] == [(MODEL, DATE)]
    assert await admin_life.endings_of(api.database, member(other.tenant_id)) == []
    await admin_life.retire_model(api.database, ADMIN, name=MODEL)
    assert [(tenant, kind) for tenant, kind, _ in await notices()] == [
        (mine, "model.deprecated"),
        (mine, "model.retired"),
    ]
