"""Answers that are too large to be kept: refused before dispatch where that can be known, billed where it cannot."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from billing.metering.records import Outcome
from core.errors import EngineFailed, RequestTooLarge
from core.ids import uuid7
from core.tokens import TokenUsage
from gateway import merge_chunks, relay, sse
from gateway.limits import MAX_ANSWER_BYTES, MAX_ANSWER_LOGPROBS, MAX_BYTES_PER_TOKEN
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from gateway.schemas.completions import parse_completion
from tests.support.gateway_fakes import (
    FakeEngines,
    FakeModel,
    FakeReply,
    Gateway,
    Script,
    answer,
    chunk,
    principal,
)  # fmt: skip
from tests.support.waiting import until

BIG = FakeModel(context_len=1_000_000, max_output_tokens=400_000)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def chat(**fields: Any) -> PreparedRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], **fields}
    return parse_chat(json.dumps(body).encode())


async def run(
    prepared: PreparedRequest, *scripts: Script, model: FakeModel = BIG
) -> tuple[Gateway, FakeReply]:
    gateway, reply = Gateway(FakeEngines(*scripts), model=model, covered=1 << 40), FakeReply()
    try:
        await gateway.director.handle(uuid7(), principal(), prepared, reply)
    finally:
        gateway.assert_resolved()
    return gateway, reply


@pytest.mark.promise(19)
@pytest.mark.parametrize(
    ("n", "max_tokens", "top", "accepted"),
    [(16, 16_384, 0, True), (16, 16_385, 0, False), (1, 12_483, 20, True), (1, 12_484, 20, False)],
)
async def test_log_probabilities_that_could_not_be_kept_are_refused_before_dispatch(
    n: int, max_tokens: int, top: int, accepted: bool
) -> None:
    asked = {"n": n, "max_tokens": max_tokens, "logprobs": True, "top_logprobs": top}
    gateway = Gateway(FakeEngines(answer(["hi"])), model=BIG)
    try:
        await gateway.director.handle(uuid7(), principal(), chat(**asked), FakeReply())
        refused = None
    except RequestTooLarge as error:
        refused = error
    assert (refused is None) == accepted
    if refused is not None:
        assert refused.code == "answer_too_large"
        assert f"at most {MAX_ANSWER_LOGPROBS:,}" in refused.message
        assert not gateway.engines.bodies
    await run(chat(stream=True, **asked), answer(["hi"]))


async def test_an_answer_with_log_probabilities_and_no_limit_gets_one_that_can_be_kept() -> None:
    gateway, _ = await run(chat(logprobs=True, top_logprobs=20), answer(["hi"]))
    longest = MAX_ANSWER_LOGPROBS // 21
    assert msgspec.json.decode(gateway.engines.bodies[0])["max_tokens"] == longest
    assert gateway.holds.requests[0].default_output_tokens == longest
    kept = MAX_ANSWER_BYTES // MAX_BYTES_PER_TOKEN
    streamed = chat(stream=True, logprobs=True, top_logprobs=20)
    for unlimited, longest in ((chat(), kept), (streamed, BIG.max_output_tokens)):
        gateway, _ = await run(unlimited, answer(["hi"]))
        assert gateway.holds.requests[0].default_output_tokens == longest


def test_log_probabilities_per_token() -> None:
    def text(**fields: Any) -> PreparedRequest:
        return parse_completion(json.dumps({"model": "tiny", "prompt": "x", **fields}).encode())

    asked = [chat(), chat(logprobs=True), chat(logprobs=True, top_logprobs=3), text(), text(logprobs=0)]
    assert [one.logprobs_per_token for one in asked] == [0, 1, 4, 0, 1]


async def test_an_answer_that_outgrows_the_memory_ends_there_and_is_billed(monkeypatch: Any) -> None:
    monkeypatch.setattr(merge_chunks, "MAX_ANSWER_BYTES", 1000 + 12 * merge_chunks.PART_BYTES)
    gateway, reply = await run(chat(), answer(["x" * 100] * 50))
    [record] = gateway.meter.settled
    body = json.loads(reply.body)
    assert (record.outcome, record.usage) == (Outcome.LENGTH, TokenUsage(5, 0, 11))
    assert body["choices"][0]["finish_reason"] == "length"
    assert len(body["choices"][0]["message"]["content"]) == 1100
    assert body["usage"]["completion_tokens"] == 11
    assert gateway.engines.streams[0].aborted == 1
    [tail] = record.unbilled
    assert tail.tail_output > 0, "what the engine generated beyond that is bounded for reconciliation"


async def test_an_event_too_large_ends_a_stream_that_has_delivered(monkeypatch: Any) -> None:
    """Engines put what they generate while nothing is read into one event: a slow reader could make it this large."""
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    script: Script = [chunk("a", tokens=1), chunk("b", tokens=2), chunk("x" * 2000, tokens=900)[:-2]]
    gateway, reply = await run(chat(stream=True), script)
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage) == (Outcome.LENGTH, TokenUsage(5, 0, 2))
    assert record.cost > 0
    assert [d["choices"][0]["finish_reason"] for d in reply.documents()] == [None, None, "length"]
    assert gateway.engines.streams[0].aborted == 1


async def test_an_event_too_large_before_any_content_is_the_engines_failure(monkeypatch: Any) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    broken: Script = [chunk("x" * 2000, tokens=1)[:-2]]
    gateway = Gateway(FakeEngines(broken, [*broken]))
    with pytest.raises(EngineFailed):
        await gateway.director.handle(uuid7(), principal(), chat(stream=True), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost) == (Outcome.ENGINE_FAILED, 0)


@pytest.mark.parametrize(
    ("fields", "whole"),
    [
        ({"max_tokens": MAX_ANSWER_BYTES // MAX_BYTES_PER_TOKEN}, True),
        ({"max_tokens": MAX_ANSWER_BYTES // MAX_BYTES_PER_TOKEN + 1}, False),
        ({"max_tokens": 10, "logprobs": True}, False),
    ],
)
async def test_only_answers_that_certainly_fit_are_asked_for_in_one_piece(
    fields: dict[str, Any], whole: bool
) -> None:
    gateway = Gateway(FakeEngines([asyncio.Event()]), model=BIG)
    task = asyncio.create_task(
        gateway.director.handle(uuid7(), principal(), chat(tools=[TOOL], **fields), FakeReply())
    )
    await until(lambda: gateway.holds.requests)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert gateway.holds.requests[0].whole is whole


async def test_an_answer_in_one_piece_above_its_bound_is_the_engines_failure(monkeypatch: Any) -> None:
    monkeypatch.setattr(relay, "MAX_ANSWER_BYTES", 1000)
    gateway = Gateway(FakeEngines([b"x" * 1001], [b"x" * 1001]))
    with pytest.raises(EngineFailed):
        await gateway.director.handle(uuid7(), principal(), chat(tools=[TOOL], max_tokens=5), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost) == (Outcome.ENGINE_FAILED, 0)
