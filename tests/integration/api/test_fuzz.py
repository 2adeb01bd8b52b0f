"""No request that an OpenAPI document describes, or nearly so, gets a 5xx or anything that our own does not describe.

The documents are ours, for customers and for administration, and the routes of OpenAI's and Anthropic's official ones
that are served here (tests/data). `make fuzz EXAMPLES=200` draws more requests, and tries all boundaries everywhere.
"""

import asyncio
import gzip
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from admin import keys as admin_keys
from admin import projects as admin_projects
from admin import users as admin_users
from cli.commands.sim.engine import simulated_tokenizer
from sim.hub import FakeHub
from tenants.roles import Role
from tests.support.adapters import adapter_files
from tests.support.api_process import MODEL, Api, api_process
from tests.support.fuzzing import ALL, DRAWN, Documented, Fuzzed, Fuzzer, with_values
from tests.support.tenancy import ADMIN, PEPPER, make_organisation

EXAMPLES = int(os.environ.get("EXAMPLES", "0"))
"""Drawn requests of each operation; 0 = what `make test` takes."""
DATA = Path(__file__).parents[2] / "data"
INFERENCE = (
    "^/v1/(chat/completions|completions|embeddings|messages(/count_tokens)?|responses(/input_tokens)?"
    "|tokenize|detokenize)$"
)
OK = range(200, 300)
KEY = ("Authorization", "Bearer {}")
pytestmark = [
    pytest.mark.timeout(600 + 120 * EXAMPLES),
    pytest.mark.filterwarnings("ignore"),  # of Schemathesis, about schemas that it cannot break or fulfil
]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model hub on this machine in place of the real one."""
    with FakeHub("acme/support-lora", adapter_files()).serve() as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path, hub: None) -> AsyncIterator[Api]:
    async with api_process(
        pg_url, redis_url, tmp_path, credit="100000", speedup=5000.0, listings_per_min=0,
        invalid_per_address_per_min=0, tokenizer=simulated_tokenizer(),
    ) as made:  # fmt: skip
        yield made


async def fuzzed(
    api: Api, document: dict[str, Any], credential: Callable[[], str], *, drawn: int, paths: str,
    phases: list[str] = ALL, **options: Any,
) -> Fuzzed:  # fmt: skip
    """Fuzz from another thread, as `make test` does or as EXAMPLES says."""
    fuzzer = Fuzzer(api.url, credential, EXAMPLES or drawn, ALL if EXAMPLES else phases, **options)
    return await asyncio.to_thread(fuzzer.run, document, paths)


async def document_of(api: Api, path: str) -> dict[str, Any]:
    async with api.session.get(api.url + path) as answer:
        return dict(await answer.json())


async def values(api: Api) -> dict[str, list[Any]]:
    """What exists, by the names that parameters and members of bodies have: of Acme, and of an organisation beside."""
    acme, other = api.organisation, await make_organisation(api.database, "Other")
    project = await admin_projects.create_project(
        api.database, ADMIN, tenant_id=acme.tenant_id, name="fuzzed"
    )
    key = await admin_keys.create_key(
        api.database, ADMIN, pepper=PEPPER, tenant_id=acme.tenant_id, project_id=project.id, name="fuzzed"
    )
    person = await make_person(api, "tenant_viewer")
    _, response, headers = await api.post({"model": MODEL, "input": "Hello"}, path="/v1/responses")
    await api.usage_rows(1)
    return {
        "model": [MODEL], "model_id": [MODEL], "response_id": [response["id"]],
        "id": [headers["x-request-id"]], "request_id": [headers["x-request-id"]],
        "tenant_id": [str(acme.tenant_id), str(other.tenant_id)],
        "project_id": [str(project.id), str(other.project_id)],
        "key_id": [str(key.view.id), str(other.key_id)],
        "scope_id": [str(key.view.id), str(project.id), str(other.key_id)],
        "user_id": [person], "month": ["2026-10"],
    }  # fmt: skip


async def make_person(api: Api, role: Role) -> str:
    user = await admin_users.create_user(
        api.database, ADMIN, email=f"{uuid4().hex}@example.com", password="correct horse battery", role=role,
        tenant_id=None if role == "platform_admin" else api.organisation.tenant_id,
    )  # fmt: skip
    return str(user.id)


def new_token(api: Api, role: Role) -> Callable[[], str]:
    """Makes a person with a token, from another thread: requests may revoke the token or disable its owner."""
    loop = asyncio.get_running_loop()

    async def make() -> str:
        made = await admin_users.create_admin_token(
            api.database, ADMIN, pepper=PEPPER, user_id=await make_person(api, role), name="fuzz"
        )
        return made.secret

    return lambda: asyncio.run_coroutine_threadsafe(make(), loop).result(60)


async def test_inference(api: Api) -> None:
    known = await values(api) | {"input": ["Hello", [{"role": "user", "content": "Hello"}]]}
    document = with_values(await document_of(api, "/openapi.json"), known)
    key = api.organisation.key
    found = await fuzzed(api, document, lambda: key, drawn=25, phases=DRAWN, paths=INFERENCE)
    assert not found.report, found.report
    assert len(found.statuses) == 9
    assert not found.never(OK) & {"POST /v1/chat/completions", "POST /v1/messages"}


async def test_what_a_key_may_do_beside(api: Api) -> None:
    document = with_values(await document_of(api, "/openapi.json"), await values(api))
    key = api.organisation.key
    found = await fuzzed(
        api, document, lambda: key, drawn=4, paths=f"^(?!/v1/organization)(?!{INFERENCE[1:]})"
    )
    assert not found.report, found.report
    assert len(found.statuses) >= 15
    # These need secrets that none can guess; no response runs in the background.
    secrets = {
        "POST /v1/sessions",
        "POST /v1/invitations/accept",
        "POST /v1/second-factor",
        *(f"POST /v1/second-factor/{act}" for act in ("confirm", "backup-codes", "disable")),
    }
    responses = {"POST /v1/responses/{response_id}/cancel", "DELETE /v1/responses/{response_id}"}
    assert found.never(OK) <= secrets | responses


async def test_members(api: Api) -> None:
    document = with_values(await document_of(api, "/openapi.json"), await values(api))
    found = await fuzzed(api, document, new_token(api, "tenant_owner"), drawn=2, paths="^/v1/organization")
    assert not found.report, found.report
    assert len(found.statuses) >= 37
    assert len(found.never(OK)) <= 17, sorted(
        found.never(OK)
    )  # two of them an identity provider that is none


async def test_administration(api: Api) -> None:
    document = with_values(await document_of(api, "/admin/v1/openapi.json"), await values(api))
    found = await fuzzed(
        api, document, new_token(api, "platform_admin"), drawn=3, phases=DRAWN, paths="^/admin/v1"
    )
    assert not found.report, found.report
    assert len(found.statuses) >= 130
    assert len(found.never(OK)) <= 90, found.never(OK)


@pytest.mark.parametrize("of", ["openai", "anthropic"])
async def test_official_descriptions(api: Api, of: str) -> None:
    """Requests are made from the official description. Answers are judged by ours; a 200 by the official one, too."""
    official = json.loads(gzip.decompress((DATA / of / "served.json.gz").read_bytes()))
    prefix = "/v1" if of == "openai" else ""
    judge = Judge(Documented(await document_of(api, "/openapi.json"), prefix), Documented(official))
    key = api.organisation.key
    options: dict[str, Any] = {"check": judge, "prefix": prefix, "header": KEY}
    if of == "anthropic":
        options |= {"header": ("x-api-key", "{}"), "headers": {"anthropic-version": "2023-06-01"}}
    found = await fuzzed(
        api,
        with_values(official, await values(api)),
        lambda: key,
        drawn=12,
        phases=DRAWN,
        paths="",
        **options,
    )
    assert not found.report, found.report
    assert len(found.statuses) == (11 if of == "openai" else 4)


class Judge:
    """Judges answers to requests that another document describes."""

    def __init__(self, ours: Documented, official: Documented) -> None:
        self._ours = ours
        self._official = official

    def __call__(self, path: str, method: str, status: int, headers: Any, body: bytes) -> str:
        told = self._ours(path, method, status, headers, body)
        if told or status != 200:
            return told
        wrong = self._official(path, method, status, headers, body)
        return f"the official description: {wrong}" if wrong else ""
