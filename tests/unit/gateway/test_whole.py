"""Answers asked for in one piece: what engines are asked, what is billed however they end."""

import asyncio
from typing import Any

import msgspec
import pytest

from billing.metering.records import Outcome
from core.errors import EngineFailed, InvalidRequest, PenstockError
from core.ids import uuid7
from core.tokens import TokenUsage
from gateway.context import AbortReason
from gateway.merge_chunks import AnswerMerger
from gateway.refusals import RefusedByEngine
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import Extras, PreparedRequest
from gateway.whole import SNAPSHOT_AGE_S, WholeAnswer
from scheduler.wire import PoolSnapshot
from tests.support.clock import ManualClock
from tests.support.gateway_fakes import FakeEngines, FakeModel, FakeReply, Gateway, answer, principal
from tests.support.waiting import until
from workers.wire import Capacity, EngineCounters, ReplicaState, ReplicaStatus

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def tools(**more: object) -> PreparedRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], **more}
    return parse_chat(msgspec.json.encode(body))


def document(prompt: int = 5, output: int = 9, **message: object) -> bytes:
    """A whole answer as vLLM writes it."""
    empty = {"refusal": None, "annotations": None, "audio": None, "function_call": None, "reasoning": None}
    said = {"role": "assistant", "content": None, "tool_calls": [], **empty, **message}
    end = {"logprobs": None, "finish_reason": "tool_calls", "stop_reason": None, "token_ids": None}
    return msgspec.json.encode(
        {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "tiny",
            "choices": [{"index": 0, "message": said, **end}], "service_tier": None, "prompt_logprobs": None,
            "usage": {
                "prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output,
                "prompt_tokens_details": {"cached_tokens": 2},
            },
        }
    )  # fmt: skip


def snapshot(prompt: int, *, waiting: int = 0, running: int = 1, generated: int = 0) -> PoolSnapshot:
    counters = EngineCounters(prompt_tokens=prompt, generation_tokens=generated)
    return PoolSnapshot(
        replicas=[
            ReplicaStatus("r1", "tiny", "http://r1", "vllm", "boot", ReplicaState.READY,
                          Capacity(1000.0, 0.01, 0.0), waiting=waiting, running=running, counters=counters)
        ]
    )  # fmt: skip


async def test_a_tool_call_is_asked_for_in_one_piece() -> None:
    engines = FakeEngines([document(tool_calls=[CALL])])
    gateway, reply = Gateway(engines), FakeReply()
    await gateway.director.handle(uuid7(), principal(), tools(max_tokens=50), reply)
    asked = msgspec.json.decode(engines.bodies[0])
    assert asked["stream"] is False
    assert "stream_options" not in asked
    assert "stream_interval" not in asked
    got = msgspec.json.decode(reply.body)
    assert got["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "tool_calls": [CALL], "content": None, "refusal": None},
            "logprobs": None,
            "finish_reason": "tool_calls",
        }
    ]
    assert got["penstock"]["outcome"] == "completed"
    [record] = gateway.meter.settled
    assert record.usage == TokenUsage(5, 2, 9)
    assert record.open.whole
    assert record.open.max_output_tokens == 50
    assert not record.unbilled
    gateway.assert_resolved()


@pytest.mark.parametrize(
    ("more", "granted", "whole"),
    [
        ({"max_tokens": 50}, True, True),
        ({}, True, True),
        ({}, False, False),
        ({"stream": True}, True, False),
        ({"tool_choice": "none"}, True, False),
        ({"tools": None}, True, False),
    ],
)
async def test_only_where_the_hold_covers_it(more: dict[str, Any], granted: bool, whole: bool) -> None:
    engines = FakeEngines([document(content="hi")] if whole else answer(["hi"]))
    gateway = Gateway(engines)
    gateway.holds.whole = granted
    await gateway.director.handle(uuid7(), principal(), tools(**more), FakeReply())
    assert msgspec.json.decode(engines.bodies[0])["stream"] is not whole
    [record] = gateway.meter.settled
    assert record.outcome is Outcome.COMPLETED
    gateway.assert_resolved()


async def test_the_rest_of_the_context_is_a_bound_that_the_engine_keeps() -> None:
    engines = FakeEngines([document(content="hi")])
    gateway = Gateway(engines, model=FakeModel(context_len=8192, max_output_tokens=8192))
    await gateway.director.handle(uuid7(), principal(), tools(), FakeReply())
    asked = msgspec.json.decode(engines.bodies[0])
    assert asked["stream"] is False
    assert "max_tokens" not in asked
    [record] = gateway.meter.settled
    assert record.open.max_output_tokens == 8192
    gateway.assert_resolved()


async def test_a_limit_that_may_not_fit_beside_the_prompt_is_streamed() -> None:
    engines = FakeEngines(answer(["hi"]))
    gateway = Gateway(engines, model=FakeModel(context_len=4200))
    await gateway.director.handle(uuid7(), principal(), tools(), FakeReply())
    assert msgspec.json.decode(engines.bodies[0])["stream"] is True


def test_both_ways_build_the_same_answer() -> None:
    whole = WholeAnswer(1, 100, 0.0, 0, Extras())
    whole.take("chat", document(tool_calls=[CALL], reasoning="hm"))
    events = [
        {"delta": {"role": "assistant", "content": ""}},
        {"delta": {"reasoning": "hm"}},
        {"delta": {"tool_calls": [{"index": 0, **CALL}]}},
        {"delta": {}, "finish_reason": "tool_calls"},
    ]
    merger = AnswerMerger("chat", Extras())
    for event in events:
        chunk = {"id": "chatcmpl-1", "created": 1700000000, "model": "tiny", "choices": [event]}
        merger.add(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
    assert whole.document == merger.answer()


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", document(content="hi").replace(b'"usage"', b'"used"'), b'{"choices":[],"usage":{}}'],
)
async def test_an_unknown_form_costs_nothing(body: bytes) -> None:
    gateway = Gateway(FakeEngines([body], [body]))
    with pytest.raises(EngineFailed):
        await gateway.director.handle(uuid7(), principal(), tools(), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost, record.attempts) == (Outcome.ENGINE_FAILED, 0, 2)
    gateway.assert_resolved()


async def test_an_answer_that_the_engine_gives_up_costs_nothing() -> None:
    body = document(content="hi").replace(b'"finish_reason":"tool_calls"', b'"finish_reason":"abort"')
    gateway = Gateway(FakeEngines([body], [body]))
    with pytest.raises(EngineFailed):
        await gateway.director.handle(uuid7(), principal(), tools(), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost, record.usage.output) == (Outcome.ENGINE_FAILED, 0, 9)


async def test_nothing_generated_costs_nothing() -> None:
    gateway = Gateway(FakeEngines([document(content="", output=1)]))
    await gateway.director.handle(uuid7(), principal(), tools(), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost) == (Outcome.ZERO_OUTPUT, 0)


async def test_a_prompt_that_several_empty_choices_repeat_is_noted() -> None:
    """The engine counts it once for each choice, the usage row once, also where nothing was delivered."""
    body = msgspec.json.decode(document(content="", output=2))
    body["choices"].append({**body["choices"][0], "index": 1})
    gateway = Gateway(FakeEngines([msgspec.json.encode(body)]))
    await gateway.director.handle(uuid7(), principal(), tools(n=2), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost, record.usage) == (Outcome.ZERO_OUTPUT, 0, TokenUsage(5, 2, 2))
    assert [(one.cause, one.input) for one in record.unbilled] == [("choices", 5)]


async def test_an_answer_without_its_usage_costs_nothing() -> None:
    bodies = [document(content="hi", output=0), document(content="hi", prompt=0)]
    gateway = Gateway(FakeEngines(*([body] for body in bodies)))
    with pytest.raises(EngineFailed):
        await gateway.director.handle(uuid7(), principal(), tools(), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost) == (Outcome.ENGINE_FAILED, 0)
    gateway.assert_resolved()


async def test_no_more_is_billed_than_the_limit_that_an_engine_ignores() -> None:
    gateway = Gateway(FakeEngines([document(content="hi", output=900)]))
    await gateway.director.handle(uuid7(), principal(), tools(max_tokens=50), FakeReply())
    [record] = gateway.meter.settled
    assert record.usage.output == 50


async def test_what_is_generated_before_a_refusal_of_the_whole_answer_is_noted() -> None:
    gateway = Gateway(FakeEngines(RefusedByEngine("tool-call-parser cannot read the answer")))
    with pytest.raises(InvalidRequest):
        await gateway.director.handle(uuid7(), principal(), tools(max_tokens=50), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost) == (Outcome.ZERO_OUTPUT, 0)
    [tail] = record.unbilled
    assert (tail.cause, tail.tail_output) == ("engine_failed", 50)
    assert tail.tail_input > 0
    gateway.assert_resolved()


async def left_after(
    seconds: float,
    *,
    count: int = 5,
    grown: int = 5,
    grows: int = 0,
    waiting: int = 0,
    running: int = 1,
    speed: int = 100,
) -> Gateway:
    """A client that leaves. The engine's counter of prompt tokens has `grown` since the dispatch.

    It `grows` further each second, in which `speed` tokens are generated.
    """
    clock = ManualClock()
    gateway = Gateway(FakeEngines([asyncio.Event()]), now=clock.monotonic)
    gateway.scheduler.predicted_itl_s = 0.01
    gateway.prompts.tokens = count
    gateway.snapshot = snapshot(1000)
    task = asyncio.create_task(
        gateway.director.handle(uuid7(), principal(), tools(max_tokens=700), FakeReply())
    )
    await until(lambda: gateway.engines.streams)
    generated = 0
    while seconds >= 1:
        gateway.snapshot = snapshot(1000 + grown, waiting=waiting, running=running, generated=generated)
        generated, grown = generated + speed, grown + grows
        clock.advance(1.0)
        seconds -= 1
        gateway.open_requests.tick()
        await asyncio.sleep(0.001)
    [context] = list(gateway.open_requests)
    context.abort(AbortReason.CLIENT_DISCONNECTED)
    with pytest.raises(PenstockError):
        await task
    assert gateway.engines.streams[0].aborted
    gateway.assert_resolved()
    return gateway


@pytest.mark.promise(8)
async def test_a_client_that_leaves_pays_the_prompt_that_was_prefilled() -> None:
    gateway = await left_after(6.0)
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage) == (Outcome.CLIENT_CANCELLED, TokenUsage(5))
    assert record.cost == 500
    [tail] = record.unbilled
    assert (tail.cause, tail.input, tail.output, tail.tail_input) == ("cancelled_tail", 0, 0, 0)
    assert tail.tail_output == 700, "what the engine may have generated, bounded by the limit"
    assert gateway.meter.checkpoints[-1].usage == TokenUsage(5)


@pytest.mark.promise(8)
@pytest.mark.parametrize(
    "case",
    [
        {"seconds": SNAPSHOT_AGE_S - 1},
        {"seconds": 9.0, "count": 0},
        {"seconds": 9.0, "grown": 4},
        {"seconds": 9.0, "waiting": 1},
        {"seconds": 9.0, "running": 0},
        {"seconds": 9.0, "running": 2},
        {"seconds": 9.0, "speed": 0},
        {"seconds": 9.0, "grows": 1},
    ],
    ids=[
        "early",
        "no tokenizer",
        "not counted by the engine",
        "queued in the engine",
        "not in the engine",
        "beside another request",
        "nothing generated",
        "another prompt prefilled",
    ],
)
async def test_a_client_that_leaves_before_that_is_known_pays_nothing(case: dict[str, Any]) -> None:
    gateway = await left_after(**case)
    [record] = gateway.meter.settled
    assert (record.usage, record.cost) == (TokenUsage(), 0)
    assert sum(one.tail_input for one in record.unbilled) > 0


async def test_tokens_advance_by_the_predicted_speed() -> None:
    gateway = await left_after(6.0)
    assert gateway.scheduler.progressed[:6] == [100, 200, 300, 400, 500, 600]
