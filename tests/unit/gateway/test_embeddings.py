"""Requests for embeddings: what is accepted, what engines are asked, what is billed however they end."""

import json
import struct
from base64 import b64decode, b64encode
from typing import Any

import msgspec
import pytest

from billing.metering.records import Outcome
from core.errors import EngineFailed, InvalidRequest, RequestTooLarge, UnsupportedField
from core.ids import uuid7
from core.tokens import TokenUsage
from gateway.abilities import check_embeddings_size
from gateway.limits import MAX_ANSWER_BYTES, MAX_INPUTS
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


def vectors_of(dimensions: int) -> FakeModel:
    return FakeModel(capabilities=("embeddings",), embedding_dimensions=dimensions)


@pytest.mark.parametrize(
    ("dimensions", "fields", "fits"),
    [
        (4096, {}, 629),
        (4096, {"encoding_format": "base64"}, None),
        (4096, {"dimensions": 256}, None),
        (4096, {"dimensions": 65_536}, 629),
        (65_536, {"encoding_format": "base64"}, 191),
        (1024, {}, None),
        (0, {"dimensions": 65_536}, 39),
        (0, {}, None),
    ],
)
async def test_more_inputs_than_fit_into_an_answer(
    dimensions: int, fields: dict[str, Any], fits: int | None
) -> None:
    """They are refused before anything is reserved, and so many as fit are not."""
    model, all_fit = vectors_of(dimensions), MAX_INPUTS if fits is None else fits
    check_embeddings_size(asked(["a"] * all_fit, **fields), model)
    if fits is None:
        return
    gateway = Gateway(FakeEngines(), model=model)
    with pytest.raises(RequestTooLarge) as refused:
        await gateway.director.handle(uuid7(), principal(), asked(["a"] * (fits + 1), **fields), FakeReply())
    assert (refused.value.code, refused.value.param) == ("answer_too_large", "input")
    assert refused.value.details == {"inputs_that_fit": fits}
    assert f" {fits:,} fit into one answer" in refused.value.message
    assert not gateway.holds.requests


@pytest.mark.parametrize("packed", [True, False])
def test_the_bound_of_a_vector_holds(packed: bool) -> None:
    """No entry that an engine writes is longer than what is counted for it."""
    numbers = [-1.2345678918063641e-05] * 1000
    entry = {"index": 2047, "object": "embedding", "embedding": numbers}
    if packed:
        entry["embedding"] = b64encode(struct.pack("<1000f", *numbers)).decode()
    written = len(json.dumps(entry))  # with a blank after each comma
    fits = MAX_ANSWER_BYTES // written
    with pytest.raises(RequestTooLarge) as refused:
        check_embeddings_size(
            msgspec.structs.replace(
                asked("a", **({"encoding_format": "base64"} if packed else {})), choices=10**9
            ),
            vectors_of(1000),
        )
    told = refused.value.details["inputs_that_fit"]
    assert 0.8 * fits < told <= fits


async def test_an_answer_of_unknown_size_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The customer's mistake, for nothing, and no other replica is asked."""
    monkeypatch.setattr("gateway.relay.MAX_ANSWER_BYTES", 300)
    whole = document(*[FLOATS] * 9)
    assert len(whole) > 300
    gateway = Gateway(FakeEngines([whole[:200], whole[200:310], whole[310:]]), model=MODEL)
    with pytest.raises(RequestTooLarge) as refused:
        await gateway.director.handle(uuid7(), principal(), asked(["a"] * 9), FakeReply())
    assert refused.value.details == {"inputs_that_fit": whole[:310].count(b'"embedding":') - 1}
    assert refused.value.code == "answer_too_large"
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost, record.attempts) == (Outcome.ZERO_OUTPUT, 0, 1)
    gateway.assert_resolved()
