"""Parsing of large bodies in other processes: equal results, fair turns, and a worker's death fails one request."""

import asyncio
import io
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest, Refused, RequestTooLarge, Unavailable, UnsupportedField
from core.ids import uuid7
from gateway.limits import MAX_BODY_BYTES, body_limit
from gateway.parsing import pool as pool_module
from gateway.parsing.budget import INLINE_BYTES, KEY_SHARE, MAX_BYTES, TENANT_SHARE, BodyBudget
from gateway.parsing.parser import CHAT, TEXT, BodyParser
from gateway.parsing.pool import ParserPool
from gateway.parsing.worker import PARSERS, answer, decode_reply, frame, serve
from gateway.schemas.chat import parse_chat
from tests.support.gateway_fakes import FakeModel, FakeModels, principal
from tests.support.waiting import until

KEY, OTHER_KEY = uuid7(), uuid7()
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(content: str = "hi", **fields: object) -> bytes:
    return json.dumps(
        {"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}
    ).encode()


LARGE = chat("x" * INLINE_BYTES)
FULL = chat(
    "é\n",
    max_tokens=5,
    n=2,
    stop=["a"],
    temperature=0.5,
    logit_bias={"1": 2},
    tools=[TOOL],
    tool_choice={"type": "function", "function": {"name": "f"}},
    response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1e3}}},
    reasoning_effort="high",
)


@pytest.fixture
async def pool() -> AsyncIterator[ParserPool]:
    made = ParserPool()
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (CHAT, chat()),
        (CHAT, FULL),
        (TEXT, b'{"model":"m","prompt":["a","b"],"logprobs":1}'),
        (TEXT, b'{"model":"m","prompt":[1,2]}'),
    ],
)
def test_a_reply_carries_the_same_request(endpoint: bytes, body: bytes) -> None:
    here, there = PARSERS[endpoint](body), decode_reply(answer(endpoint + body))
    assert there.engine_body("m", "s", reasoning=True) == here.engine_body("m", "s", reasoning=True)
    assert there.prompt_prefix(100) == here.prompt_prefix(100)
    here.drop_body()
    there.drop_body()
    assert there == here


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"[", InvalidRequest), (chat(n=99), InvalidRequest), (chat(echo=True), UnsupportedField),
     (chat(tools=[TOOL] * 200), RequestTooLarge)],
)  # fmt: skip
def test_a_reply_carries_the_same_error(body: bytes, kind: type[InvalidRequest]) -> None:
    with pytest.raises(InvalidRequest) as here:
        parse_chat(body)
    with pytest.raises(InvalidRequest) as there:
        decode_reply(answer(CHAT + body))
    assert type(there.value) is type(here.value) is kind
    assert [there.value.message, there.value.code, there.value.param] == [
        here.value.message, here.value.code, here.value.param,
    ]  # fmt: skip


def test_a_worker_serves_until_its_input_ends() -> None:
    sink = io.BytesIO()
    serve(io.BytesIO(frame(CHAT, chat()) + frame(CHAT, b"{") + frame(CHAT, chat())[:-1]), sink)
    replies = io.BytesIO(sink.getvalue())
    assert replies.read(4) == frame()
    size = int.from_bytes(replies.read(4), "big")
    assert decode_reply(replies.read(size)).model == "tiny"
    size = int.from_bytes(replies.read(4), "big")
    with pytest.raises(InvalidRequest):
        decode_reply(replies.read(size))
    assert not replies.read()


async def test_a_large_body_is_parsed_by_a_worker_and_a_small_one_here(pool: ParserPool) -> None:
    parser = BodyParser(FakeModels(FakeModel()), pool)
    small = await parser.parse(principal(), CHAT, chat())
    assert (small.model, pool.parsed) == ("tiny", 0)
    large = await parser.parse(principal(), CHAT, LARGE)
    assert large.engine_body("m", "s") == parse_chat(LARGE).engine_body("m", "s")
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        await parser.parse(principal(), CHAT, LARGE[:-1])
    assert pool.parsed == 2


def stub(code: str) -> list[str]:
    """The command of a worker that runs `code` with the name and type of the request's body in `body`."""
    return [
        sys.executable,
        "-c",
        "import os, sys, time\n"
        "from gateway.parsing.worker import answer, frame\n"
        "sys.stdout.buffer.write(frame())\n"
        "sys.stdout.buffer.flush()\n"
        "while head := sys.stdin.buffer.read(4):\n"
        "    request = sys.stdin.buffer.read(int.from_bytes(head, 'big'))\n"
        f"    {code}\n"
        "    sys.stdout.buffer.write(frame(answer(request)))\n"
        "    sys.stdout.buffer.flush()\n",
    ]


async def test_a_body_that_kills_its_worker_gets_a_400_and_others_are_parsed() -> None:
    pool = ParserPool(stub("b'poison' in request and os.abort()"), workers=1)
    poisoned = asyncio.create_task(pool.parse(KEY, CHAT, chat("poison")))
    good = asyncio.create_task(pool.parse(OTHER_KEY, CHAT, chat("good")))
    with pytest.raises(InvalidRequest) as error:
        await poisoned
    assert error.value.code == "body_not_parsed"
    assert (await good).model == "tiny"
    assert (await pool.parse(KEY, CHAT, chat("good"))).model == "tiny"
    await pool.close()


async def test_a_body_that_takes_too_long_gets_a_400(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "PARSE_TIMEOUT_S", 0.01)
    pool = ParserPool(stub("time.sleep(3600)"), workers=1)
    with pytest.raises(InvalidRequest) as error:
        await pool.parse(KEY, CHAT, chat())
    assert error.value.code == "body_not_parsed"
    await pool.close()


async def test_keys_take_turns() -> None:
    pool = ParserPool(stub("pass"), workers=1)
    order: list[str] = []

    async def parse(key: UUID, name: str) -> None:
        await pool.parse(key, CHAT, chat())
        order.append(name)

    jobs = [(KEY, f"flood {number}") for number in range(4)]
    jobs += [(OTHER_KEY, "other 0"), (OTHER_KEY, "other 1"), (uuid7(), "third")]
    await asyncio.gather(*(parse(key, name) for key, name in jobs))
    assert order == ["flood 0", "other 0", "third", "flood 1", "other 1", "flood 2", "flood 3"]
    await pool.close()


async def test_a_key_uses_one_worker() -> None:
    pool = ParserPool(stub("time.sleep(3600)"), workers=2)
    jobs = [asyncio.create_task(pool.parse(KEY, CHAT, chat())) for _ in range(3)]
    await asyncio.sleep(0)
    assert len(pool._tasks) == 1
    jobs.append(asyncio.create_task(pool.parse(OTHER_KEY, CHAT, chat())))
    await asyncio.sleep(0)
    assert len(pool._tasks) == 2
    await pool.close()
    ended, _ = await asyncio.wait(jobs, timeout=pool_module.START_TIMEOUT_S)
    assert len(ended) == 4, "a body whose worker had not begun waits on"
    assert all(isinstance(job.exception(), Unavailable) for job in jobs)


async def test_a_client_that_leaves_frees_its_turn() -> None:
    pool = ParserPool(stub("pass"), workers=1)
    first = asyncio.create_task(pool.parse(KEY, CHAT, chat()))
    left = asyncio.create_task(pool.parse(KEY, CHAT, chat()))
    last = asyncio.create_task(pool.parse(KEY, CHAT, chat()))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(first, last)
    await until(lambda: pool.parsed == 2, what="two bodies parsed")
    assert not pool._waiting
    await pool.close()


async def test_closing_ends_what_waits_and_all_workers() -> None:
    pool = ParserPool(stub("time.sleep(3600)"), workers=1)
    jobs = [asyncio.create_task(pool.parse(key, CHAT, chat())) for key in (KEY, KEY, OTHER_KEY)]
    await until(lambda: bool(pool._tasks), what="a worker is busy")
    await pool.close()
    assert [type(result) for result in await asyncio.gather(*jobs, return_exceptions=True)] == [
        Unavailable
    ] * 3
    assert not pool._tasks


async def test_a_worker_gets_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEY_PEPPER", "secret")
    assert "secret" not in pool_module._environment().values()
    assert set(pool_module._environment()) == {"PATH", "PYTHONPATH"}


@pytest.mark.parametrize("code", ["import time; time.sleep(3600)", "pass"], ids=["slow", "ends at once"])
async def test_a_body_is_not_blamed_for_a_worker_that_does_not_start(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "START_TIMEOUT_S", 0.01 if "sleep" in code else 60.0)
    pool = ParserPool([sys.executable, "-c", code], workers=1)
    with pytest.raises(Unavailable) as error:
        await pool.parse(KEY, CHAT, chat())
    assert error.value.code == "parser_busy"
    await pool.close()


def test_no_worker_without_a_program() -> None:
    async def parse() -> None:
        with pytest.raises(Unavailable) as error:
            await ParserPool([os.devnull]).parse(KEY, CHAT, chat())
        assert error.value.code == "parser_busy"

    asyncio.run(parse())


def test_the_budget_gives_keys_tenants_and_the_process_their_shares() -> None:
    budget, body = BodyBudget(), MAX_BODY_BYTES
    one = principal()
    with ExitStack() as stack:
        for _ in range(MAX_BYTES // KEY_SHARE // body):
            stack.enter_context(budget.reserve(one, body))
        with pytest.raises(Refused) as error, budget.reserve(one, body):
            pass
        assert error.value.status == 429
        while budget.total < MAX_BYTES // TENANT_SHARE:
            stack.enter_context(budget.reserve(principal(key_id=uuid7(), tenant_id=one.tenant_id), body))
        with (
            pytest.raises(Refused),
            budget.reserve(principal(key_id=uuid7(), tenant_id=one.tenant_id), body),
        ):
            pass
        while budget.total < MAX_BYTES:
            stack.enter_context(budget.reserve(principal(key_id=uuid7(), tenant_id=uuid7()), body))
        with pytest.raises(Unavailable), budget.reserve(principal(key_id=uuid7(), tenant_id=uuid7()), body):
            pass
    assert budget.total == 0
    assert not budget._owners


@given(st.integers(0, 2_000_000), st.integers(1, 16))
def test_a_longer_context_never_takes_less(context_len: int, prompts: int) -> None:
    limit = body_limit(context_len, prompts)
    assert limit <= body_limit(context_len + 1, prompts) <= MAX_BODY_BYTES
    assert limit == MAX_BODY_BYTES or limit >= 32 * context_len * prompts
