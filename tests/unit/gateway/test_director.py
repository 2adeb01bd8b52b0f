"""The director: each refusal undoes the other, and whatever strikes, everything is resolved exactly once."""

import asyncio
import json
from collections.abc import MutableMapping
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.customer.reply import HttpReply
from billing.metering.records import OpenRecord, Outcome
from core.errors import (
    AuthenticationFailed,
    EngineFailed,
    InsufficientCredit,
    InvalidRequest,
    ModelNotFound,
    PermissionDenied,
    RateLimited,
    Refused,
    RequestTooLarge,
    Unavailable,
)  # fmt: skip
from core.ids import uuid7
from core.money import pico_to_usd
from core.tokens import TokenUsage
from gateway.answers import usage_object
from gateway.context import AbortReason
from gateway.limits import body_limit
from gateway.ports import ClientDisconnected
from gateway.refusals import RefusedByEngine
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from gateway.schemas.completions import parse_completion
from scheduler.wire import PoolSnapshot
from tests.support.gateway_fakes import (
    DONE,
    FakeEngines,
    FakeModel,
    FakeModels,
    FakeReply,
    Gateway,
    answer,
    chunk,
    final,
    principal,
)  # fmt: skip
from tests.support.waiting import until


def prepared(**fields: object) -> PreparedRequest:
    return parse_chat(
        json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hello"}], **fields}).encode()
    )


async def test_streams_counts_and_settles() -> None:
    gateway = Gateway(FakeEngines(answer(["Hel", "lo", "!"])))
    reply = FakeReply()
    await gateway.director.handle(uuid7(), principal(), prepared(stream=True), reply)
    text = "".join(d["choices"][0]["delta"].get("content", "") for d in reply.documents())
    assert text == "Hello!"
    assert b"usage" not in reply.body
    assert reply.body.endswith(DONE)
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage) == (Outcome.COMPLETED, TokenUsage(5, 0, 3))
    assert gateway.rates.settled == [(5, 3)]
    assert gateway.scheduler.prefilled == 1
    assert gateway.engines.streams[0].closed == 1
    gateway.assert_resolved()


@pytest.mark.parametrize(("own_s", "expected_s"), [(None, 120.0), (300.0, 300.0), (0.0, 0.0)])
async def test_the_models_own_deadline_for_waking_replaces_that_of_the_tier(
    own_s: float | None, expected_s: float
) -> None:
    gateway = Gateway(FakeEngines(answer(["a"])), model=FakeModel(wake_deadline_s=own_s), now=lambda: 1.0)
    await gateway.director.handle(uuid7(), principal(), prepared(), FakeReply())
    [asked] = gateway.scheduler.requests
    assert (asked.deadline_s, asked.wake_deadline_s) == (30.0, expected_s)


async def test_usage_and_cost_when_asked_for() -> None:
    gateway = Gateway(FakeEngines(answer(["a", "b"])))
    reply = FakeReply()
    asked = prepared(stream=True, stream_options={"include_usage": True})
    await gateway.director.handle(uuid7(), principal(), asked, reply)
    last = reply.documents()[-1]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2
    assert last["usage"]["cost"] == 1.3e-9
    assert b'"cost":0.0000000013' in reply.body
    assert last["penstock"]["outcome"] == "completed"
    assert all("usage" not in document for document in reply.documents()[:-1])


async def test_a_whole_answer_is_merged_with_its_cost() -> None:
    gateway = Gateway(FakeEngines(answer(["Hel", "lo"], finish="length")))
    reply = FakeReply()
    await gateway.director.handle(uuid7(), principal(), prepared(), reply)
    body = json.loads(reply.body)
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 7
    assert b'"cost":0.0000000013' in reply.body
    headers = dict(reply.headers)
    assert headers[b"x-penstock-outcome"] == b"length"
    assert headers[b"x-penstock-cost-usd"] == b"0.0000000013"
    assert headers[b"x-ratelimit-remaining-requests"] == b"9"
    gateway.assert_resolved()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_says_what_served_it(stream: bool) -> None:
    end = final(1).replace(b'"choices":[]', b'"choices":[],"system_fingerprint":"vllm-1"')
    gateway = Gateway(FakeEngines([chunk("a", tokens=1, finish="stop"), end, DONE]))
    reply = FakeReply()
    asked = prepared(stream=stream, stream_options={"include_usage": True} if stream else None)
    await gateway.director.handle(uuid7(), principal(), asked, reply)
    last = reply.documents()[-1] if stream else json.loads(reply.body)
    assert (last["system_fingerprint"], last["service_tier"]) == ("vllm-1", "default")


@pytest.mark.parametrize(("money_pauses", "place_pauses"), [(0, 0), (0, 3), (3, 0)])
@pytest.mark.parametrize("which", ["rates", "money", "place", "both"])
async def test_a_refusal_undoes_the_other(which: str, money_pauses: int, place_pauses: int) -> None:
    gateway = Gateway(FakeEngines())
    gateway.holds.pauses, gateway.scheduler.pauses = money_pauses, place_pauses
    if which == "rates":
        gateway.rates.refuse = RateLimited("slow down", retry_after_s=3)
    if which in ("money", "both"):
        gateway.holds.refuse = InsufficientCredit("no money")
    if which in ("place", "both"):
        gateway.scheduler.refuse = Refused("full", status=503)
    with pytest.raises((RateLimited, InsufficientCredit, Refused)):
        await gateway.director.handle(uuid7(), principal(), prepared(), FakeReply())
    await asyncio.sleep(0.01)
    gateway.assert_resolved()
    assert not gateway.meter.settled


async def test_a_catalog_that_is_too_old_is_no_fault_of_the_customer(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(self: FakeModels, name: str, tenant_id: UUID, allowed: object = None) -> FakeModel:
        raise Unavailable("too old", code="models_stale", retry_after_s=2.0)

    monkeypatch.setattr(FakeModels, "resolve_for", stale)
    gateway = Gateway(FakeEngines())
    with pytest.raises(Unavailable, match="too old"):
        await gateway.director.handle(uuid7(), principal(), prepared(), FakeReply())
    assert gateway.rates.invalid == 0


async def test_an_offline_model_is_refused_before_anything_is_reserved() -> None:
    gateway = Gateway(FakeEngines())
    gateway.snapshot = PoolSnapshot(complete=True)
    with pytest.raises(Refused) as refused:
        await gateway.director.handle(uuid7(), principal(), prepared(), FakeReply())
    assert refused.value.code == "model_offline"
    assert not gateway.rates.granted
    assert not gateway.holds.requests
    assert not gateway.scheduler.requests
    assert gateway.rates.invalid == 0, "it is no fault of the customer"
    gateway.assert_resolved()


async def test_no_metering_no_admission() -> None:
    gateway = Gateway(FakeEngines())
    gateway.meter.ready = False
    with pytest.raises(Unavailable):
        await gateway.director.handle(uuid7(), principal(), prepared(), FakeReply())
    gateway.assert_resolved()


async def test_models_are_checked_first() -> None:
    gateway = Gateway(FakeEngines(), model=FakeModel(context_len=100))
    with pytest.raises(ModelNotFound):
        await gateway.director.handle(uuid7(), principal(), prepared(model="tinny"), FakeReply())
    limited = principal(allowed_models=frozenset({"other"}))
    with pytest.raises(PermissionDenied):
        await gateway.director.handle(uuid7(), limited, prepared(), FakeReply())
    with pytest.raises(InvalidRequest, match="100 tokens"):
        await gateway.director.handle(uuid7(), principal(), prepared(max_tokens=100), FakeReply())
    longer = prepared(messages=[{"role": "user", "content": "x" * body_limit(100, 1)}])
    with pytest.raises(RequestTooLarge, match="at most 134,272 bytes"):
        await gateway.director.handle(uuid7(), principal(), longer, FakeReply())
    assert gateway.rates.invalid == 4
    gateway.assert_resolved()


async def test_the_prompt_is_kept_for_another_attempt_and_freed_when_the_answer_begins() -> None:
    gateway = Gateway(FakeEngines([EngineFailed("reset")], answer(["ok", "ok"])))
    asked = prepared(stream=True)
    reply = FakeReply()
    reply.stuck = asyncio.Event()
    task = asyncio.create_task(gateway.director.handle(uuid7(), principal(), asked, reply))
    await until(lambda: reply.started, what="the answer begins")
    assert asked.fields == {}
    reply.stuck.set()
    await task
    first, second = gateway.engines.bodies
    assert first == second
    assert b'"content":"hello"' in second
    gateway.assert_resolved()


async def test_the_fair_queue_hears_the_share_of_an_organisation() -> None:
    gateway = Gateway(FakeEngines(answer(["ok"]), answer(["ok"])))
    for who in (principal(), principal(share_percent=250)):
        await gateway.director.handle(uuid7(), who, prepared(), FakeReply())
    assert [asked.weight for asked in gateway.scheduler.requests] == [1.0, 2.5]
    gateway.assert_resolved()


async def test_failed_attempt_runs_once_more_elsewhere() -> None:
    broken = [chunk("", tokens=0, role=True), EngineFailed("reset")]
    gateway = Gateway(FakeEngines(broken, answer(["ok"])))
    reply = FakeReply()
    await gateway.director.handle(uuid7(), principal(), prepared(stream=True), reply)
    [record] = gateway.meter.settled
    assert (record.outcome, record.attempts, record.open.replica_id) == (Outcome.COMPLETED, 2, "r2")
    assert record.extra_unbilled == TokenUsage(5, 0, 0)
    assert [one.failed for one in gateway.scheduler.released] == [True, False]
    assert gateway.scheduler.requests[1].exclude == ["r1"]
    assert [d["choices"][0]["delta"].get("role") for d in reply.documents()] == ["assistant", None]
    assert gateway.engines.headers[0] == gateway.engines.headers[1]
    gateway.assert_resolved()


@pytest.mark.promise(7)
async def test_the_open_line_names_the_engine_of_the_running_attempt() -> None:
    """A process that is killed during a second attempt leaves its tokens to the engine that counts them."""
    broken = [chunk("", tokens=0, role=True), asyncio.Event(), EngineFailed("reset")]
    again = [chunk("", tokens=0, role=True), asyncio.Event()]
    gateway = Gateway(FakeEngines(broken, again))
    task = asyncio.create_task(
        gateway.director.handle(uuid7(), principal(), prepared(stream=True), FakeReply())
    )
    await until(lambda: gateway.engines.streams and len(gateway.engines.streams[0].script) == 1)
    gateway.open_requests.tick()
    gateway.scheduler.block = asyncio.Event()
    broken[1].set()  # type: ignore[union-attr]
    await until(lambda: len(gateway.scheduler.requests) == 2, what="it waits for another replica")
    assert gateway.meter.checkpoints[-1].usage == TokenUsage(), "nothing is billed of the failed attempt"
    gateway.scheduler.block.set()
    await until(lambda: len(gateway.engines.streams) == 2 and not gateway.engines.streams[1].script)
    gateway.open_requests.tick()
    first, second = gateway.meter.opened
    assert (first.replica_id, first.earlier_attempts) == ("r1", 0)
    assert (second.replica_id, second.earlier_attempts, second.earlier_usage) == ("r2", 1, TokenUsage(5))
    assert [(one.cause, one.replica_id) for one in second.earlier_unbilled] == [("retried", "r1")]
    assert [one.usage.input for one in gateway.meter.checkpoints] == [5, 0, 5]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    gateway.assert_resolved()


async def test_no_second_attempt_without_its_open_line(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(FakeEngines(EngineFailed("down"), answer(["ok"])))
    write = gateway.meter.open

    def full(record: OpenRecord) -> None:
        if gateway.meter.opened:
            raise Unavailable("the spool is full")
        write(record)

    monkeypatch.setattr(gateway.meter, "open", full)
    with pytest.raises(Unavailable):
        await gateway.director.handle(uuid7(), principal(), prepared(stream=True), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost, record.open.replica_id) == (Outcome.ENGINE_FAILED, 0, "r1")
    assert len(gateway.engines.bodies) == 1
    gateway.assert_resolved()
    first, second = gateway.scheduler.released
    assert (first.replica_id, first.failed, first.dispatched) == ("r1", True, True)
    assert (second.replica_id, second.failed, second.dispatched) == ("r2", False, False)
    assert {one.replica_id for one in record.unbilled} == {"r1"}, "the other engine has counted nothing"


@pytest.mark.promise(7)
@pytest.mark.parametrize("reason", ["abort", "error"])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_gives_up_an_answer_has_not_completed_it(reason: str, stream: bool) -> None:
    """vLLM ends answers so when it is stopped or put to sleep."""
    given_up = [chunk("", tokens=0, role=True), chunk("x", tokens=1, finish=reason), final(1), DONE]
    gateway, reply = Gateway(FakeEngines(given_up, answer(["ok"]))), FakeReply()
    await gateway.director.handle(uuid7(), principal(), prepared(stream=stream), reply)
    [record] = gateway.meter.settled
    assert (record.outcome, record.attempts, record.usage.output) == (Outcome.COMPLETED, 2, 1)
    assert record.extra_unbilled == TokenUsage(5, 0, 1)
    assert reason.encode() not in reply.body
    gateway.assert_resolved()


@pytest.mark.promise(7)
async def test_an_answer_that_is_given_up_after_content_is_free() -> None:
    script = [chunk("a", tokens=1), chunk("b", tokens=2, finish="abort"), final(2), DONE]
    gateway, reply = Gateway(FakeEngines(script)), FakeReply()
    with pytest.raises(EngineFailed, match="nothing is charged"):
        await gateway.director.handle(uuid7(), principal(), prepared(stream=True), reply)
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage.output, record.cost) == (Outcome.ENGINE_FAILED, 2, 0)
    assert b"abort" not in reply.body


@pytest.mark.promise(7)
@pytest.mark.parametrize("again", [None, Refused("none left")])
async def test_second_failure_is_free_and_said(again: Exception | None) -> None:
    gateway = Gateway(FakeEngines(EngineFailed("down"), EngineFailed("down too")))
    gateway.scheduler.refuse_again = again
    with pytest.raises(EngineFailed, match="nothing is charged"):
        await gateway.director.handle(uuid7(), principal(), prepared(stream=True), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost) == (Outcome.ENGINE_FAILED, 0)
    gateway.assert_resolved()


@pytest.mark.promise(7)
@pytest.mark.parametrize(
    "end",
    [
        [b'data: {"error":{"message":"EngineCore died","code":500}}\n\n', DONE],
        [EngineFailed("reset")],
        [],
    ],
)
async def test_failure_after_content_is_not_retried_and_free(
    end: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Gateway(FakeEngines([chunk("a", tokens=1), chunk("b", tokens=2), *end]))
    reply = FakeReply()
    with pytest.raises(EngineFailed):
        await gateway.director.handle(uuid7(), principal(), prepared(stream=True), reply)
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage.output, record.cost) == (Outcome.ENGINE_FAILED, 2, 0)
    assert " failed: " in caplog.text
    assert "EngineCore died" not in caplog.text  # an engine's own words may quote the prompt
    assert gateway.engines.streams[0].aborted == 1
    gateway.assert_resolved()


UNIQUE = (
    b'data: {"error":{"message":"Grammar error: Unimplemented keys: [\\"uniqueItems\\"]","code":400}}\n\n'
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [RefusedByEngine("maximum context length is 9 tokens"), [UNIQUE, DONE]])
async def test_what_the_engine_refuses_is_the_clients_mistake(script: Any, stream: bool) -> None:
    """It costs nothing, is tried once, and does not count against the replica."""
    gateway = Gateway(FakeEngines(script))
    reply = FakeReply()
    with pytest.raises(InvalidRequest) as refusal:
        await gateway.director.handle(uuid7(), principal(), prepared(stream=stream), reply)
    assert "Unimplemented" not in refusal.value.message
    assert not reply.started
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost, record.attempts) == (Outcome.ZERO_OUTPUT, 0, 1)
    assert [one.failed for one in gateway.scheduler.released] == [False]
    gateway.assert_resolved()


async def test_a_refusal_after_the_first_content_is_a_failure_of_the_engine() -> None:
    gateway = Gateway(FakeEngines([chunk("a", tokens=1), UNIQUE, DONE]))
    with pytest.raises(EngineFailed):
        await gateway.director.handle(uuid7(), principal(), prepared(stream=True), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost) == (Outcome.ENGINE_FAILED, 0)


@pytest.mark.promise(7)
async def test_nothing_generated_costs_nothing() -> None:
    gateway = Gateway(FakeEngines([chunk("", tokens=1, finish="stop"), final(1), DONE]))
    await gateway.director.handle(uuid7(), principal(), prepared(stream=True), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage.output, record.cost) == (Outcome.ZERO_OUTPUT, 1, 0)


async def test_engine_without_any_usage_bills_a_lower_bound() -> None:
    gateway = Gateway(FakeEngines([chunk("a"), chunk("b"), chunk("c", finish="stop"), DONE]))
    await gateway.director.handle(uuid7(), principal(), prepared(stream=True), FakeReply())
    assert gateway.meter.settled[0].usage == TokenUsage(0, 0, 3)


@pytest.mark.parametrize("one_read", [False, True])
async def test_hold_used_up_ends_the_answer_cleanly(one_read: bool) -> None:
    words = answer(["w"] * 1040)
    script = [b"".join(words)] if one_read else words
    gateway = Gateway(FakeEngines(script), covered=10)
    gateway.holds.extensions = [True, False]
    reply = FakeReply()
    await gateway.director.handle(uuid7(), principal(), prepared(stream=True), reply)
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage.output) == (Outcome.BUDGET_STOPPED, 10 + 1024)
    delivered = [d for d in reply.documents() if d["choices"][0]["delta"].get("content")]
    assert len(delivered) == 10 + 1024
    assert reply.documents()[-1]["choices"][0]["finish_reason"] == "length"
    assert reply.body.endswith(DONE)
    assert gateway.engines.streams[0].aborted == 1
    gateway.assert_resolved()


async def test_the_last_of_the_money_is_asked_for_by_the_token() -> None:
    """1,024 tokens more are refused, those of the event that has arrived are not."""
    script = [chunk("a", tokens=1), chunk("b", tokens=12), chunk("c", tokens=30)]
    gateway = Gateway(FakeEngines(script), covered=10)
    gateway.holds.extensions = [False, True, False, False]
    reply = FakeReply()
    await gateway.director.handle(uuid7(), principal(), prepared(stream=True), reply)
    assert gateway.holds.extended == [1024, 2, 1024, 18]
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage.output) == (Outcome.BUDGET_STOPPED, 12)
    gateway.assert_resolved()


async def test_models_own_limit_is_an_ordinary_length_finish() -> None:
    gateway = Gateway(FakeEngines(answer(["w"] * 20)), model=FakeModel(max_output_tokens=8))
    reply = FakeReply()
    await gateway.director.handle(uuid7(), principal(), prepared(), reply)
    assert gateway.meter.settled[0].outcome is Outcome.LENGTH
    assert gateway.meter.settled[0].usage.output == 8
    assert json.loads(reply.body)["choices"][0]["finish_reason"] == "length"
    assert gateway.holds.extended == []


async def test_an_answer_without_max_tokens_may_use_the_rest_of_the_context() -> None:
    gateway = Gateway(
        FakeEngines(answer(["w"] * 60)), model=FakeModel(context_len=100, max_output_tokens=100), covered=10
    )
    gateway.holds.extensions = [True]
    reply = FakeReply()
    await gateway.director.handle(uuid7(), principal(), prepared(stream=True), reply)
    assert "max_tokens" not in json.loads(gateway.engines.bodies[0])  # the engine knows how much is left
    assert gateway.holds.requests[0].default_output_tokens == 100
    assert gateway.holds.extended == [90]
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage.output) == (Outcome.COMPLETED, 60)
    gateway.assert_resolved()


@pytest.mark.promise(6)
@pytest.mark.parametrize("stream", [True, False])
async def test_client_gone_aborts_and_bills_what_was_counted(stream: bool) -> None:
    never = asyncio.Event()
    gateway = Gateway(FakeEngines([chunk("a", tokens=1), chunk("b", tokens=2), never]))
    request_id = uuid7()
    task = asyncio.create_task(
        gateway.director.handle(request_id, principal(), prepared(stream=stream), FakeReply())
    )
    await until(lambda: gateway.engines.streams and not gateway.engines.streams[0].script)
    gateway.open_requests.abort_request(request_id, AbortReason.CLIENT_DISCONNECTED)
    with pytest.raises(Unavailable):
        await task
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage) == (Outcome.CLIENT_CANCELLED, TokenUsage(5, 0, 2))
    assert gateway.engines.streams[0].aborted == 1
    gateway.assert_resolved()


@pytest.mark.promise(6)
async def test_each_prompt_that_was_begun_is_billed() -> None:
    """A text completion of three prompts with two choices each, whose client leaves when two prompts have begun."""
    script = [
        chunk("a", tokens=1, index=index, prompt=prompt, dialect="text")
        for index, prompt in ((0, 7), (1, 7), (4, 20), (5, 20), (4, 20))
    ]
    gateway = Gateway(FakeEngines([*script, asyncio.Event()]))
    body = {"model": "tiny", "prompt": ["x", "y", "z"], "n": 2, "stream": True}
    request_id = uuid7()
    task = asyncio.create_task(
        gateway.director.handle(
            request_id, principal(), parse_completion(json.dumps(body).encode()), FakeReply()
        )
    )
    await until(lambda: gateway.engines.streams and not gateway.engines.streams[0].script)
    gateway.open_requests.abort_request(request_id, AbortReason.CLIENT_DISCONNECTED)
    with pytest.raises(Unavailable):
        await task
    [record] = gateway.meter.settled
    assert record.usage == TokenUsage(27, 0, 4)
    gateway.assert_resolved()


@pytest.mark.promise(6)
@pytest.mark.parametrize("broken", [RuntimeError("the handler is closed"), ConnectionResetError()])
async def test_an_error_of_writing_to_the_client_is_not_the_engines(broken: Exception) -> None:
    """What was counted is billed, as for any client that leaves."""
    gateway = Gateway(FakeEngines(answer(["a", "b", "c"])))
    sent: list[object] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)
        if len(sent) > 2:
            raise broken

    request_id = uuid7()
    with pytest.raises(ClientDisconnected):
        await gateway.director.handle(
            request_id, principal(), prepared(stream=True), HttpReply(send, request_id)
        )
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage) == (Outcome.CLIENT_CANCELLED, TokenUsage(5, 0, 2))
    assert gateway.engines.streams[0].aborted == 1
    gateway.assert_resolved()


async def test_a_cut_request_keeps_the_cache_discount_that_was_predicted() -> None:
    """The engine tells what was cached only at the end; who leaves before is billed by the prediction."""
    gateway = Gateway(FakeEngines([chunk("a", tokens=1), asyncio.Event()]))
    gateway.scheduler.hit_tokens = 3
    request_id = uuid7()
    task = asyncio.create_task(
        gateway.director.handle(request_id, principal(), prepared(stream=True), FakeReply())
    )
    await until(lambda: gateway.engines.streams and not gateway.engines.streams[0].script)
    gateway.open_requests.abort_request(request_id, AbortReason.CLIENT_DISCONNECTED)
    with pytest.raises(Unavailable):
        await task
    [record] = gateway.meter.settled
    assert record.usage == TokenUsage(5, 3, 1)


async def test_a_finished_request_is_billed_by_what_the_engine_said_was_cached() -> None:
    gateway = Gateway(FakeEngines(answer(["a"])))
    gateway.scheduler.hit_tokens = 3
    await gateway.director.handle(uuid7(), principal(), prepared(stream=True), FakeReply())
    [record] = gateway.meter.settled
    assert record.usage.cached_input == 0


@pytest.mark.parametrize("cut", [True, False])
async def test_cut_short_before_any_output_costs_the_prompt(cut: bool) -> None:
    """The engine has counted the prompt but generated nothing; also when the server goes down."""
    gateway = Gateway(FakeEngines([chunk("", tokens=0, role=True), asyncio.Event()]))
    request_id = uuid7()
    task = asyncio.create_task(
        gateway.director.handle(request_id, principal(), prepared(stream=True), FakeReply())
    )
    await until(lambda: gateway.engines.streams and not gateway.engines.streams[0].script)
    if cut:
        gateway.open_requests.abort_request(request_id, AbortReason.CLIENT_DISCONNECTED)
    else:
        task.cancel()
    with pytest.raises((Unavailable, asyncio.CancelledError)):
        await task
    [record] = gateway.meter.settled
    assert record.outcome is (Outcome.CLIENT_CANCELLED if cut else Outcome.INTERRUPTED)
    assert (record.cost, record.usage, record.extra_unbilled) == (500, TokenUsage(5), TokenUsage())
    assert gateway.rates.settled == [(5, 0)]
    gateway.assert_resolved()


async def test_an_answer_that_cannot_be_put_together_is_free() -> None:
    """What the client is told (nothing is charged) must be so."""
    odd = chunk("hi", tokens=1, finish="stop").replace(b'"logprobs":null', b'"logprobs":[1]')
    gateway = Gateway(FakeEngines([odd, final(1), DONE]))
    with pytest.raises(EngineFailed):
        await gateway.director.handle(uuid7(), principal(), prepared(logprobs=True), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost) == (Outcome.ENGINE_FAILED, 0)
    gateway.assert_resolved()


async def test_a_cut_ends_only_the_choices_that_have_not_ended() -> None:
    script = [
        chunk("a", tokens=1, index=0),
        chunk("b", tokens=2, index=0, finish="stop"),
        *(chunk("c", tokens=n, index=1) for n in range(1, 9)),
    ]
    gateway = Gateway(FakeEngines(script), covered=6)
    reply = FakeReply()
    await gateway.director.handle(uuid7(), principal(), prepared(stream=True, n=2), reply)
    ends = [
        (choice["index"], choice["finish_reason"])
        for document in reply.documents()
        for choice in document["choices"]
        if choice["finish_reason"]
    ]
    assert ends == [(0, "stop"), (1, "length")]


@pytest.mark.promise(26)
async def test_revoked_key_ends_its_open_streams() -> None:
    gateway = Gateway(FakeEngines([chunk("a", tokens=1), asyncio.Event()]))
    key = principal()
    reply = FakeReply()
    task = asyncio.create_task(gateway.director.handle(uuid7(), key, prepared(stream=True), reply))
    await until(lambda: reply.body)
    gateway.open_requests.abort_keys(frozenset({uuid7()}))
    gateway.open_requests.abort_keys(frozenset({key.key_id}))
    with pytest.raises(AuthenticationFailed, match="revoked"):
        await task
    gateway.assert_resolved()


async def test_server_going_down_interrupts() -> None:
    gateway = Gateway(FakeEngines([chunk("a", tokens=1), asyncio.Event()]))
    reply = FakeReply()
    task = asyncio.create_task(gateway.director.handle(uuid7(), principal(), prepared(stream=True), reply))
    await until(lambda: reply.body)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gateway.meter.settled[0].outcome is Outcome.INTERRUPTED
    gateway.assert_resolved()


@pytest.mark.promise(1, 4, 24)
@settings(max_examples=300, deadline=None)
@given(
    strike=st.integers(0, 60),
    rates=st.integers(0, 4),
    money=st.integers(0, 6),
    place=st.integers(0, 6),
    stream=st.booleans(),
    fail_first=st.booleans(),
    cut=st.booleans(),
    refuse=st.sampled_from(["", "money", "place"]),
)
def test_cancelled_anywhere_everything_is_resolved_once(
    strike: int, rates: int, money: int, place: int, stream: bool, fail_first: bool, cut: bool, refuse: str
) -> None:
    """Whatever the loop is doing when the request is cancelled: hold, placement and grant end exactly once, a usage
    row exists if and only if the request was admitted, and what was delivered is billed."""

    async def scenario() -> None:
        good = answer(["a", "b", "c"])
        scripts = [[chunk("", tokens=0, role=True), EngineFailed("x")], good] if fail_first else [good]
        gateway = Gateway(FakeEngines(*scripts))
        gateway.rates.pauses, gateway.holds.pauses, gateway.scheduler.pauses = rates, money, place
        if refuse == "money":
            gateway.holds.refuse = InsufficientCredit("no")
        if refuse == "place":
            gateway.scheduler.refuse = Refused("no")
        reply = FakeReply()
        request_id = uuid7()
        task = asyncio.create_task(
            gateway.director.handle(request_id, principal(), prepared(stream=stream), reply)
        )
        for _ in range(strike):
            await asyncio.sleep(0)
        if cut:
            gateway.open_requests.abort_request(request_id, AbortReason.CLIENT_DISCONNECTED)
        else:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(20):
            await asyncio.sleep(0)
        gateway.assert_resolved()
        delivered = (
            sum(1 for d in reply.documents() if d["choices"][0]["delta"].get("content")) if stream else 0
        )
        billed = sum(record.usage.output for record in gateway.meter.settled)
        assert delivered <= billed <= 3

    asyncio.run(scenario())


@given(cost=st.integers(0, 10**20))
def test_the_cost_is_a_number_of_exact_decimals(cost: int) -> None:
    text = pico_to_usd(cost)
    found = json.loads(msgspec.json.encode(usage_object(TokenUsage(), text)), parse_float=Decimal)
    assert found["cost"] * 10**12 == cost


@pytest.mark.parametrize(("rank", "sent"), [(3, "3"), (0, "0"), (None, None)])
async def test_the_engine_is_asked_for_the_rank_of_the_placement(rank: int | None, sent: str | None) -> None:
    gateway = Gateway(FakeEngines(answer(["a"])))
    gateway.scheduler.rank = rank
    await gateway.director.handle(uuid7(), principal(), prepared(), FakeReply())
    assert [headers.get("X-data-parallel-rank") for headers in gateway.engines.headers] == [sent]
