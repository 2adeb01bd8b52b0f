"""Requests for embeddings: what is accepted, what engines are asked, what is billed however they end."""

import struct
from base64 import b64decode
from typing import Any

import msgspec
import pytest

from billing.metering.records import Outcome
from core.errors import EngineFailed, InvalidRequest, RequestTooLarge, UnsupportedField
from core.ids import uuid7
from core.tokens import TokenUsage
from gateway.limits import MAX_INPUTS
from gateway.refusals import RefusedByEngine
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from gateway.schemas.embeddings import parse_embeddings
from tests.support.gateway_fakes import FakeEngines, FakeModel, FakeReply, Gateway, principal

MODEL = FakeModel(capabilities=("embeddings",))
FLOATS = b"[0.1250000001,-1e-07]"


def asked(given: Any, **more: Any) -> PreparedRequest:
    return parse_embeddings(msgspec.json.encode({"model": "tiny", "input": given, **more}))


def document(*vectors: bytes, tokens: int = 7, order: list[int] | None = None) -> bytes:
    """An engine's answer."""
    entries = [
        {"index": index, "object": "embedding", "embedding": msgspec.Raw(vectors[index])}
        for index in order or range(len(vectors))
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    return msgspec.json.encode({"id": "embd-1", "object": "list", "data": entries, "usage": usage})


@pytest.mark.parametrize(
    ("given", "inputs"), [("a", 1), (["a", "b"], 2), ([5, 6], 1), ([[5, 6], [7], [8]], 3)]
)
def test_every_form_of_input(given: Any, inputs: int) -> None:
    prepared = asked(given, encoding_format="base64", dimensions=8, user="u")
    assert (prepared.choices, prepared.choices_per_prompt) == (inputs, 1)
    assert prepared.labels is not None
    assert prepared.labels.end_user == "u"
    assert not prepared.ignored_fields
    assert msgspec.json.decode(prepared.engine_body("m", "salt", whole=True)) == {
        "model": "m", "input": given, "encoding_format": "base64", "dimensions": 8, "cache_salt": "salt",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"input": ""}, InvalidRequest),
        ({"input": []}, InvalidRequest),
        ({"input": ["a", ""]}, InvalidRequest),
        ({"input": [[1], []]}, InvalidRequest),
        ({"input": ["a", 1]}, InvalidRequest),
        ({"input": [-1]}, InvalidRequest),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, RequestTooLarge),
        ({"input": "a", "dimensions": 0}, InvalidRequest),
        ({"input": "a", "encoding_format": "hex"}, InvalidRequest),
        ({"input": "a", "messages": [{}]}, UnsupportedField),
        ({"input": "a", "truncate_prompt_tokens": 5}, UnsupportedField),
        ({"input": "a", "dimension": 5}, InvalidRequest),
        ({}, InvalidRequest),
    ],
)
def test_what_is_refused(fields: dict[str, Any], error: type[InvalidRequest]) -> None:
    with pytest.raises(error):
        parse_embeddings(msgspec.json.encode({"model": "tiny", **fields}))


def test_a_cut_at_the_context_is_taken_because_nothing_above_the_context_is() -> None:
    prepared = parse_embeddings(
        msgspec.json.encode({"model": "tiny", "input": "a", "truncate_prompt_tokens": -1})
    )
    assert "truncate_prompt_tokens" not in {**prepared.fields}
    assert prepared.ignored_fields == ()


async def test_vectors_are_passed_on_as_written_and_only_the_input_is_billed() -> None:
    engines = FakeEngines([document(FLOATS, b'"AAA="', order=[1, 0])])
    gateway, reply = Gateway(engines, model=MODEL), FakeReply()
    await gateway.director.handle(uuid7(), principal(), asked(["a", "b"]), reply)
    assert b'"embedding":' + FLOATS in reply.body
    got = msgspec.json.decode(reply.body)
    assert [entry["index"] for entry in got["data"]] == [0, 1]
    assert got["data"][1]["embedding"] == "AAA="
    assert (got["object"], got["model"]) == ("list", "tiny")
    assert got["usage"]["prompt_tokens"] == got["usage"]["total_tokens"] == 7
    assert got["penstock"]["outcome"] == "completed"
    [hold] = gateway.holds.requests
    assert (hold.whole, hold.max_output_tokens, hold.default_output_tokens) == (True, 0, 0)
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage) == (Outcome.COMPLETED, TokenUsage(7))
    assert record.open.whole
    assert record.open.max_output_tokens == 0
    assert not record.unbilled
    gateway.assert_resolved()


async def test_a_hold_that_covers_little_changes_nothing() -> None:
    gateway, reply = Gateway(FakeEngines([document(FLOATS)]), model=MODEL), FakeReply()
    gateway.holds.whole = False
    await gateway.director.handle(uuid7(), principal(), asked("a"), reply)
    [record] = gateway.meter.settled
    assert (record.usage, record.open.max_output_tokens) == (TokenUsage(7), 0)
    assert msgspec.json.decode(reply.body)["data"]


@pytest.mark.parametrize(
    "broken",
    [b"{}", document(FLOATS), document(FLOATS, FLOATS, tokens=0), document(b"1", b"2", order=[0, 0])],
)
async def test_a_wrong_answer_is_tried_again_elsewhere(broken: bytes) -> None:
    gateway, reply = Gateway(FakeEngines([broken], [document(FLOATS, FLOATS)]), model=MODEL), FakeReply()
    await gateway.director.handle(uuid7(), principal(), asked(["a", "b"]), reply)
    [record] = gateway.meter.settled
    assert (record.attempts, record.usage) == (2, TokenUsage(7))
    gateway.assert_resolved()


async def test_two_failures_cost_nothing() -> None:
    gateway = Gateway(FakeEngines([b"{}"], [b"{}"]), model=MODEL)
    with pytest.raises(EngineFailed):
        await gateway.director.handle(uuid7(), principal(), asked("a"), FakeReply())
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage.total, record.cost) == (Outcome.ENGINE_FAILED, 0, 0)
    gateway.assert_resolved()


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ("This model's maximum context length is 8192 tokens. However,", "input", "context_length_exceeded"),
        ("Token id 99999 is out of vocabulary", "input", "invalid_request"),
        ("Model 'm' only supports dimensions in range [1, 256], got 4000.", "dimensions", "invalid_request"),
    ],
)
async def test_what_the_engine_refuses_is_a_400(message: str, param: str, code: str) -> None:
    gateway = Gateway(FakeEngines(RefusedByEngine(message)), model=MODEL)
    with pytest.raises(InvalidRequest) as refused:
        await gateway.director.handle(uuid7(), principal(), asked("a", dimensions=4000), FakeReply())
    assert (refused.value.param, refused.value.code) == (param, code)
    [record] = gateway.meter.settled
    assert record.outcome is Outcome.ZERO_OUTPUT
    gateway.assert_resolved()


async def test_each_model_does_its_own() -> None:
    chat = parse_chat(b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}]}')
    for model, prepared in ((MODEL, chat), (FakeModel(), asked("x"))):
        gateway = Gateway(FakeEngines(), model=model)
        with pytest.raises(UnsupportedField, match=r"does not (chat|embed texts)"):
            await gateway.director.handle(uuid7(), principal(), prepared, FakeReply())
        assert not gateway.holds.requests


async def test_test_keys_get_the_same_vector_every_time() -> None:
    gateway, vectors = Gateway(FakeEngines(), model=MODEL), []
    for form in ("float", "base64", "float"):
        reply = FakeReply()
        request = asked(["a", "b"], encoding_format=form, dimensions=16)
        await gateway.director.handle(uuid7(), principal(kind="test"), request, reply)
        got = msgspec.json.decode(reply.body)
        assert got["penstock"]["test"] is True
        vectors.append([entry["embedding"] for entry in got["data"]])
    assert vectors[0] == vectors[2]
    assert vectors[0][0] != vectors[0][1]
    unpacked = struct.unpack("<16f", b64decode(vectors[1][0]))
    assert unpacked == pytest.approx(vectors[0][0], rel=1e-5)
    assert sum(number**2 for number in unpacked) == pytest.approx(1)
    assert not gateway.meter.opened
