"""What an answer without visible text costs: nothing only when it delivered nothing at all."""

import json
from typing import Any

import msgspec
import pytest

from billing.metering.records import Outcome
from core.ids import uuid7
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from gateway.schemas.completions import parse_completion
from tests.support.gateway_fakes import DONE, FakeEngines, FakeReply, Gateway, Script, final, principal

TOKEN = {"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def chat(**fields: Any) -> PreparedRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], **fields}
    return parse_chat(json.dumps(body).encode())


def text(**fields: Any) -> PreparedRequest:
    return parse_completion(json.dumps({"model": "tiny", "prompt": "hello", **fields}).encode())


def ending(tokens: int = 3, *, delta: dict[str, Any] | None = None, **end: Any) -> Script:
    """An answer of one event as vLLM writes it, without text."""
    choice = {
        "index": 0, "delta": {"content": "", **(delta or {})}, "logprobs": None, "finish_reason": "stop",
        "stop_reason": None, "token_ids": None, **end,
    }  # fmt: skip
    if "text" in end:
        del choice["delta"]
    choice = {name: value for name, value in choice.items() if value is not msgspec.UNSET}
    usage = {"prompt_tokens": 5, "completion_tokens": tokens}
    event = {"id": "c", "object": "o", "created": 1, "model": "tiny", "choices": [choice], "usage": usage}
    return [b"data: " + msgspec.json.encode(event) + b"\n\n", final(tokens), DONE]


def whole(tokens: int = 3, *, message: dict[str, Any] | None = None, **end: Any) -> Script:
    """The same answer in one piece."""
    said = {"role": "assistant", "content": None, "tool_calls": [], **(message or {})}
    choice = {
        "index": 0,
        "message": said,
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
        **end,
    }
    usage = {"prompt_tokens": 5, "completion_tokens": tokens}
    return [
        msgspec.json.encode({"id": "c", "created": 1, "model": "tiny", "choices": [choice], "usage": usage})
    ]


async def run(prepared: PreparedRequest, script: Script) -> tuple[Gateway, FakeReply]:
    gateway, reply = Gateway(FakeEngines(script)), FakeReply()
    await gateway.director.handle(uuid7(), principal(), prepared, reply)
    gateway.assert_resolved()
    return gateway, reply


STOPPED = {"stop_reason": "e"}
LOGPROBS = {"logprobs": {"content": [TOKEN], "refusal": None}}
TEXT_LOGPROBS = {"text": "", "logprobs": {"tokens": ["x"], "token_logprobs": [-0.5], "text_offset": [0]}}
IDS = {"token_ids": [151645]}
SGLANG = {"stop_reason": msgspec.UNSET, "matched_stop": "e"}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("prepare", "asked", "end", "outcome"),
    [
        (chat, {"stop": ["e", "t"]}, STOPPED, Outcome.COMPLETED),
        (chat, {"stop": "e"}, SGLANG, Outcome.COMPLETED),
        (text, {"stop": "e"}, {"text": "", **STOPPED}, Outcome.COMPLETED),
        (chat, {"logprobs": True}, LOGPROBS, Outcome.COMPLETED),
        (text, {"logprobs": 0}, TEXT_LOGPROBS, Outcome.COMPLETED),
        (chat, {"return_token_ids": True}, IDS, Outcome.COMPLETED),
        (text, {"return_token_ids": True}, {"text": "", **IDS}, Outcome.COMPLETED),
        (chat, {"max_tokens": 3}, {"finish_reason": "length"}, Outcome.LENGTH),
        (chat, {"logit_bias": {"7": 100}}, {}, Outcome.COMPLETED),
        (chat, {"tools": [TOOL], "stream": True}, {"delta": {"tool_calls": [CALL]}}, Outcome.COMPLETED),
    ],
)  # fmt: skip
async def test_a_delivered_result_without_text_is_billed(
    prepare: Any, asked: dict[str, Any], end: dict[str, Any], outcome: Outcome, stream: bool
) -> None:
    gateway, reply = await run(prepare(**{"stream": stream, **asked}), ending(**end))
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage.input, record.usage.output) == (outcome, 5, 3)
    assert record.cost > 0
    for asked_for in ("stop_reason", "logprobs", "token_ids"):
        if end.get(asked_for):
            assert json.dumps(end[asked_for]) in json.dumps(json.loads(_last(reply)))


def _last(reply: FakeReply) -> bytes:
    """The body, or a stream's last event with a choice."""
    if reply.body.startswith(b"{"):
        return reply.body
    return [event[6:] for event in reply.body.split(b"\n\n") if b'"choices":[{' in event][-1]


@pytest.mark.parametrize(
    ("asked", "end", "outcome"),
    [
        ({"stop": "e"}, STOPPED, Outcome.COMPLETED),
        ({}, {"message": {"tool_calls": [CALL]}}, Outcome.COMPLETED),
        ({"max_tokens": 3}, {"finish_reason": "length"}, Outcome.LENGTH),
        ({"logit_bias": {"7": 100}}, {}, Outcome.COMPLETED),
        ({"return_token_ids": True}, IDS, Outcome.COMPLETED),
    ],
)
async def test_a_delivered_result_in_one_piece_is_billed(
    asked: dict[str, Any], end: dict[str, Any], outcome: Outcome
) -> None:
    gateway, _ = await run(chat(tools=[TOOL], **asked), whole(**end))
    [record] = gateway.meter.settled
    assert record.open.whole
    assert (record.outcome, record.usage.output, record.cost > 0) == (outcome, 3, True)


@pytest.mark.promise(7)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("asked", "end"),
    [
        ({}, {}),
        ({}, STOPPED),
        ({}, LOGPROBS),
        ({}, IDS),
        ({"return_token_ids": True}, {}),
        ({"return_token_ids": True}, {"token_ids": []}),
        ({"stop": "e"}, {}),
        ({"stop": "e"}, {"stop_reason": 128009}),
        ({"logprobs": True}, {"logprobs": {"content": []}}),
    ],
    ids=[
        "end",
        "stop unasked",
        "logprobs unasked",
        "ids unasked",
        "ids not told",
        "no ids",
        "own end",
        "another end token",
        "no logprobs",
    ],
)
async def test_nothing_delivered_is_free(asked: dict[str, Any], end: dict[str, Any], stream: bool) -> None:
    """Extras that the engine adds of its own do not count as delivered, and are not delivered."""
    gateway, reply = await run(chat(stream=stream, **asked), ending(**end))
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage.output, record.cost) == (Outcome.ZERO_OUTPUT, 3, 0)
    if not asked:
        assert b"stop_reason" not in reply.body
        assert b'"token"' not in reply.body


@pytest.mark.promise(7)
@pytest.mark.parametrize("end", [{}, STOPPED, LOGPROBS])
async def test_nothing_delivered_in_one_piece_is_free(end: dict[str, Any]) -> None:
    gateway, reply = await run(chat(tools=[TOOL]), whole(**end))
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost) == (Outcome.ZERO_OUTPUT, 0)
    assert b"stop_reason" not in reply.body
    assert b'"token"' not in reply.body


async def test_stop_strings_make_no_answer_free() -> None:
    """The most frequent letters as stop strings end many answers before their first letter."""
    stops = list("etao")
    for stop in stops:
        gateway, _ = await run(chat(stream=True, stop=stops), ending(1, stop_reason=stop))
        [record] = gateway.meter.settled
        assert (record.usage.input, record.cost > 0) == (5, True)
