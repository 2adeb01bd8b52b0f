"""Text completions of many prompts: one request, one hold and one placement, whose engine gets 16 choices at a time."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.metering.records import Outcome
from core.errors import EngineFailed, InvalidRequest, Unavailable
from core.ids import uuid7
from core.tokens import TokenUsage
from gateway import merge_chunks
from gateway.context import AbortReason, Request, RequestContext
from gateway.limits import MAX_PROMPTS
from gateway.parsing.worker import answer as answer_of_worker
from gateway.parsing.worker import decode_reply
from gateway.refusals import RefusedByEngine
from gateway.schemas.common import PreparedRequest
from gateway.schemas.completions import parse_completion
from gateway.sse import StreamCodec
from gateway.time_budget import EngineActivity, is_overdue
from scheduler.wire import Placement, PoolSnapshot
from tests.support.gateway_fakes import (
    DONE,
    FakeEngines,
    FakeModel,
    FakeReply,
    Gateway,
    Script,
    chunk,
    final,
    principal,
)
from tests.support.waiting import until


def prepared(prompts: int, n: int = 1, *, stream: bool = True, **more: Any) -> PreparedRequest:
    body = {
        "model": "tiny",
        "prompt": [f"p{i}" for i in range(prompts)],
        "n": n,
        "stream": stream,
        "stream_options": {"include_usage": True} if stream else None,
        **more,
    }
    return parse_completion(json.dumps(body).encode())


def batch(first: int, choices: int, n: int = 1, *, cached: int = 0) -> Script:
    """An engine's stream of a batch: each choice has one token, each prompt three. The engine numbers from 0."""
    words = [
        chunk(f"w{first + i}", tokens=1, index=i, prompt=3, dialect="text", finish="stop")
        for i in range(choices)
    ]
    return [*words, final(choices, prompt=3 * choices // n, cached=cached), DONE]


async def run(gateway: Gateway, asked: PreparedRequest) -> FakeReply:
    reply = FakeReply()
    await gateway.director.handle(uuid7(), principal(), asked, reply)
    gateway.assert_resolved()
    return reply


def texts(documents: list[dict[str, Any]]) -> dict[int, str]:
    """The text of each choice of a stream."""
    found: dict[int, str] = {}
    for document in documents:
        for choice in document["choices"]:
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return found


@pytest.mark.parametrize("stream", [True, False])
@given(prompts=st.integers(1, MAX_PROMPTS // 16), n=st.integers(1, 16))
@settings(max_examples=40, deadline=None)
def test_every_choice_arrives_under_its_index_and_is_counted_once(prompts: int, n: int, stream: bool) -> None:
    each = 16 // n * n if prompts * n > 16 else prompts * n
    firsts = range(0, prompts * n, each)

    async def complete() -> tuple[Gateway, FakeReply]:
        scripts = [batch(first, min(each, prompts * n - first), n, cached=1) for first in firsts]
        gateway = Gateway(FakeEngines(*scripts))
        return gateway, await run(gateway, prepared(prompts, n, stream=stream))

    gateway, reply = asyncio.run(complete())
    if stream:
        found = texts(reply.documents())
        assert len({(one["id"], one["created"]) for one in reply.documents()}) == 1
    else:
        found = {one["index"]: one["text"] for one in json.loads(reply.body)["choices"]}
    assert found == {i: f"w{i}" for i in range(prompts * n)}
    [record] = gateway.meter.settled
    assert record.usage == TokenUsage(3 * prompts, len(firsts), prompts * n)
    assert record.outcome is Outcome.COMPLETED
    assert sum(part.input for part in record.unbilled) == 3 * prompts * (n - 1)
    sent = [json.loads(body)["prompt"] for body in gateway.engines.bodies]
    assert [prompt for part in sent for prompt in part] == [f"p{i}" for i in range(prompts)]
    assert all(len(part) * n <= 16 for part in sent)
    assert len({headers["X-Request-Id"] for headers in gateway.engines.headers}) == 1
    assert len(gateway.holds.requests) == len(gateway.scheduler.requests) == record.attempts == 1


async def test_the_hold_covers_all_prompts_and_the_placement_what_runs_at_once() -> None:
    gateway = Gateway(FakeEngines(*[batch(first, 16) for first in range(0, 64, 16)]))
    await run(gateway, prepared(64, max_tokens=10))
    [hold], [placement] = gateway.holds.requests, gateway.scheduler.requests
    assert (hold.max_output_tokens, placement.output_tokens) == (640, 160)
    assert hold.max_input_tokens == prepared(64).max_input_tokens > 64 * 2
    [(estimated, output)] = gateway.rates.estimates
    assert output == 640
    assert estimated / 5 < placement.prompt_tokens < estimated / 3
    [released] = gateway.scheduler.released
    assert (released.input_tokens, released.output_tokens) == (192, 64)


async def test_checkpoints_sum_over_batches_and_progress_does_not() -> None:
    gate = asyncio.Event()
    second = batch(16, 4)
    gateway = Gateway(FakeEngines(batch(0, 16), [second[0], gate, *second[1:]]))
    task = asyncio.create_task(run(gateway, prepared(20)))
    await until(lambda: len(gateway.engines.streams) == 2 and gateway.engines.streams[1].script == second[1:])
    await asyncio.sleep(0)
    gateway.open_requests.tick()
    assert gateway.meter.checkpoints[-1].usage == TokenUsage(48 + 3, 0, 17)
    assert gateway.scheduler.progressed[-1] == 1
    gate.set()
    await task


@pytest.mark.promise(6)
async def test_a_client_that_leaves_pays_what_was_counted_until_then() -> None:
    second = batch(16, 16)
    gateway = Gateway(FakeEngines(batch(0, 16), [*second[:2], asyncio.Event()]))
    request_id, reply = uuid7(), FakeReply()
    task = asyncio.create_task(
        gateway.director.handle(request_id, principal(), prepared(40, max_tokens=8), reply)
    )
    await until(lambda: b'"w17"' in reply.body)
    gateway.open_requests.abort_request(request_id, AbortReason.CLIENT_DISCONNECTED)
    with pytest.raises(Unavailable):
        await task
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage) == (Outcome.CLIENT_CANCELLED, TokenUsage(48 + 6, 0, 18))
    [tail] = record.unbilled
    of_batch = prepared(40).parts[1].max_input_tokens
    assert (tail.tail_input, tail.tail_output) == (of_batch - 6, 16 * 8 - 2), "only the batch that was cut"
    assert len(gateway.engines.bodies) == 2
    gateway.assert_resolved()


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_fails_after_content_ends_the_answer(stream: bool) -> None:
    gateway = Gateway(FakeEngines(batch(0, 16), [*batch(16, 16)[:2], EngineFailed("gone")], batch(0, 16)))
    with pytest.raises(EngineFailed):
        await gateway.director.handle(uuid7(), principal(), prepared(40, stream=stream), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost, record.attempts) == (Outcome.ENGINE_FAILED, 0, 1)
    assert len(gateway.engines.bodies) == 2
    gateway.assert_resolved()


async def test_before_content_all_prompts_go_to_another_replica() -> None:
    gateway = Gateway(FakeEngines(EngineFailed("gone"), batch(0, 16), batch(16, 4)))
    reply = await run(gateway, prepared(20))
    assert texts(reply.documents()) == {i: f"w{i}" for i in range(20)}
    assert [url.split("/v1")[0] for url in gateway.engines.urls] == ["http://r1", "http://r2", "http://r2"]
    [record] = gateway.meter.settled
    assert (record.attempts, record.usage) == (2, TokenUsage(60, 0, 20))


@pytest.mark.promise(6)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_of_later_prompts_is_free_only_when_nothing_was_delivered(stream: bool) -> None:
    """Otherwise a prompt that no engine takes, put last, would make all others free."""
    refused = RefusedByEngine("This model's maximum context length is 64 tokens.")
    gateway, reply = Gateway(FakeEngines(batch(0, 16), refused)), FakeReply()
    with pytest.raises(InvalidRequest, match="one of the prompts 17 to 32") as error:
        await gateway.director.handle(uuid7(), principal(), prepared(40, stream=stream), reply)
    assert error.value.code == "context_length_exceeded"
    [record] = gateway.meter.settled
    if stream:
        assert reply.body.count(b'"w') == 16
        assert (record.outcome, record.usage) == (Outcome.CLIENT_CANCELLED, TokenUsage(48, 0, 16))
        assert record.cost > 0
    else:
        assert (record.outcome, record.cost) == (Outcome.ZERO_OUTPUT, 0)
    assert [part.cause for part in record.unbilled] == ["engine_failed"], (
        "what it may have counted is bounded"
    )
    gateway.assert_resolved()


async def test_a_refusal_by_an_error_event_of_a_later_batch_is_the_customers() -> None:
    event = b'data: {"error":{"message":"maximum context length is 64 tokens","code":400}}\n\n'
    gateway = Gateway(FakeEngines(batch(0, 16), [event]))
    with pytest.raises(InvalidRequest, match="one of the prompts 17 to 20"):
        await gateway.director.handle(uuid7(), principal(), prepared(20), FakeReply())
    assert gateway.meter.settled[0].outcome is Outcome.CLIENT_CANCELLED


async def test_an_answer_that_is_too_large_has_every_choice_and_asks_for_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merge_chunks, "MAX_ANSWER_BYTES", 18 * (merge_chunks.PART_BYTES + 2))
    gateway = Gateway(FakeEngines(batch(0, 16), batch(16, 16)))
    document = json.loads((await run(gateway, prepared(40, stream=False))).body)
    assert [one["index"] for one in document["choices"]] == list(range(40))
    assert {one["finish_reason"] for one in document["choices"][20:]} == {"length"}
    assert document["choices"][39]["text"] == ""
    assert len(gateway.engines.bodies) == 2
    [record] = gateway.meter.settled
    assert record.outcome is Outcome.LENGTH
    assert record.cost > 0


async def test_a_batch_without_text_does_not_end_the_request() -> None:
    silent = [chunk("", tokens=0, index=i, prompt=3, dialect="text", finish="stop") for i in range(16)]
    gateway = Gateway(FakeEngines([*silent, final(0, prompt=48), DONE], batch(16, 4)))
    reply = await run(gateway, prepared(20))
    assert texts(reply.documents()) == {i: f"w{i}" if i >= 16 else "" for i in range(20)}
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage) == (Outcome.COMPLETED, TokenUsage(60, 0, 4))
    assert record.ttft_us > 0
    assert gateway.scheduler.prefilled == 1


async def test_prompts_are_freed_as_their_batches_begin() -> None:
    asked = prepared(40)
    gate = asyncio.Event()
    second = batch(16, 16)
    gateway = Gateway(FakeEngines(batch(0, 16), [second[0], gate, *second[1:]], batch(32, 8)))
    task = asyncio.create_task(run(gateway, asked))
    await until(lambda: len(gateway.engines.streams) == 2)
    assert [bool(part.prompts) for part in asked.parts] == [False, False, True]
    gate.set()
    await task
    assert not asked.fields
    assert not any(part.prompts for part in asked.parts)


def test_the_first_token_of_a_later_batch_may_take_as_long_as_that_of_the_first() -> None:
    async def silent_for(seconds: float) -> bool:
        request = Request(uuid7(), principal(), prepared(40), FakeModel(), FakeReply(), 0.0)
        context: RequestContext[Any] = RequestContext(request)
        placement = Placement(
            "r", "e", "r0", "http://x", "m", "b", predicted_ttft_s=30.0, predicted_itl_s=0.01
        )
        codec = context.answer.codec = StreamCodec(40, 1000)
        context.answer.committed = True
        codec.read_at, context.answer.reading_since = 90.0, 100.0
        return is_overdue(context, placement, EngineActivity(PoolSnapshot), 100.0 + seconds)

    assert not asyncio.run(silent_for(140.0)), "five times the predicted time to the first token"
    assert asyncio.run(silent_for(151.0))


def test_the_parts_survive_the_pool_of_parsers() -> None:
    body = json.dumps({"model": "tiny", "prompt": ["ä" * 3] * 20}).encode()
    asked = decode_reply(answer_of_worker(b"t" + body))
    assert asked.parts == parse_completion(body).parts
    assert [len(json.loads(part.prompts)) for part in asked.parts] == [16, 4]
