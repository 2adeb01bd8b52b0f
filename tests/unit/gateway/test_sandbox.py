"""Answers to test keys: free, the same every time, and every outcome by the model's name."""

from typing import Any

import msgspec
import pytest

from core.errors import ModelNotFound, PenstockError
from core.ids import uuid7
from gateway.sandbox import TEXT, WORDS
from gateway.schemas.chat import parse_chat
from gateway.schemas.completions import parse_completion
from tests.support.gateway_fakes import FakeEngines, FakeReply, Gateway, principal

TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


@pytest.fixture
async def gateway() -> Gateway:
    return Gateway(FakeEngines())


async def answer(gateway: Gateway, model: str, *, text: bool = False, **fields: Any) -> FakeReply:
    """The answer to a test key's request."""
    asked = {"prompt": "Hello there"} if text else {"messages": [{"role": "user", "content": "Hello"}]}
    body = msgspec.json.encode({"model": model, **asked, **fields})
    prepared = parse_completion(body) if text else parse_chat(body)
    reply = FakeReply()
    await gateway.director.handle(uuid7(), principal(kind="test"), prepared, reply)
    return reply


def untouched(gateway: Gateway) -> None:
    """No engine, no hold, no usage; the rate was taken and given back."""
    gateway.assert_resolved()
    assert not gateway.holds.requests
    assert not gateway.scheduler.requests
    assert not gateway.meter.opened
    assert not gateway.meter.settled
    assert set(gateway.rates.settled) <= {(0, 0)}


def document(reply: FakeReply) -> dict[str, Any]:
    """The whole answer."""
    return msgspec.json.decode(reply.body)


def events(reply: FakeReply) -> list[dict[str, Any]]:
    """The events of a stream before [DONE]."""
    lines = [line for line in reply.body.split(b"\n\n") if line]
    assert lines[-1] == b"data: [DONE]"
    return [msgspec.json.decode(line.removeprefix(b"data: ")) for line in lines[:-1]]


@pytest.mark.parametrize("model", ["test/ok", "test/slow", "tiny"])
async def test_a_whole_answer(gateway: Gateway, model: str) -> None:
    told = document(await answer(gateway, model))
    [choice] = told["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (TEXT, "stop")
    assert told["model"] == model
    assert told["usage"]["completion_tokens"] == len(WORDS)
    assert float(told["usage"]["cost"]) == 0.0
    assert told["penstock"]["test"] is True
    untouched(gateway)


async def test_a_stream_says_the_same(gateway: Gateway) -> None:
    sent = events(await answer(gateway, "test/slow", stream=True, stream_options={"include_usage": True}))
    choices = [event["choices"][0] for event in sent[:-1]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == TEXT
    assert [choice["finish_reason"] for choice in choices][-1] == "stop"
    assert sent[-1]["usage"]["completion_tokens"] == len(WORDS)
    assert len({event["id"] for event in sent}) == 1
    untouched(gateway)


async def test_text_and_several_choices_of_a_few_tokens(gateway: Gateway) -> None:
    told = document(await answer(gateway, "test/ok", text=True, n=2, max_tokens=3))
    assert [choice["text"] for choice in told["choices"]] == ["This answer was"] * 2
    assert {choice["finish_reason"] for choice in told["choices"]} == {"length"}
    assert told["usage"]["completion_tokens"] == 6
    sent = events(await answer(gateway, "test/ok", text=True, n=2, max_tokens=3, stream=True))
    texts = [c["text"] for event in sent for c in event["choices"] if c["index"] == 1]
    assert "".join(texts) == "This answer was"


@pytest.mark.parametrize("text", [True, False])
async def test_ids_of_tokens_as_a_model_would_tell_them(gateway: Gateway, text: bool) -> None:
    asked: dict[str, Any] = {"text": text, "max_tokens": 3, "return_token_ids": True}
    told = document(await answer(gateway, "test/ok", **asked))
    [choice] = told["choices"]
    assert choice["token_ids"] == [0, 1, 2]
    prompt = (choice if text else told)["prompt_token_ids"]
    assert len(prompt) == told["usage"]["prompt_tokens"]
    sent = events(await answer(gateway, "test/ok", stream=True, **asked))
    parts = [event["choices"][0] for event in sent]
    assert [token for part in parts for token in part["token_ids"]] == [0, 1, 2]
    assert [each["prompt_token_ids"] for each in (*sent, *parts) if "prompt_token_ids" in each] == [prompt]
    plain = await answer(gateway, "test/ok", text=text, stream=True)
    assert b"token_ids" not in plain.body


@pytest.mark.parametrize(("tools", "name"), [(TOOLS, "look_up"), (None, "get_weather")])
async def test_a_tool_call(gateway: Gateway, tools: list[Any] | None, name: str) -> None:
    asked = {} if tools is None else {"tools": tools}
    [choice] = document(await answer(gateway, "test/tool_call", **asked))["choices"]
    [call] = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["function"]) == ("tool_calls", {"name": name, "arguments": "{}"})
    sent = events(await answer(gateway, "test/tool_call", stream=True, **asked))
    deltas = [event["choices"][0]["delta"] for event in sent]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call.get("name") for call in calls] == [name, None]
    assert "".join(call["arguments"] for call in calls) == "{}"
    assert sent[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("test/rate_limited", "rate_limit_exceeded"),
        ("test/tenant_share", "tenant_share"),
        ("test/no_capacity", "no_capacity"),
        ("test/offline", "model_offline"),
        ("test/insufficient_credit", "insufficient_credit"),
        ("test/invalid_request", "invalid_request"),
        ("test/engine_failed", "engine_failed"),
        ("test/stream_error", "engine_failed"),
    ],
)
async def test_errors_by_name(gateway: Gateway, model: str, code: str) -> None:
    with pytest.raises(PenstockError) as caught:
        await answer(gateway, model)
    assert caught.value.code == code
    untouched(gateway)


async def test_an_error_in_the_middle_of_a_stream(gateway: Gateway) -> None:
    reply = FakeReply()
    body = {"model": "test/stream_error", "messages": [{"role": "user", "content": "x"}], "stream": True}
    with pytest.raises(PenstockError, match="middle of an answer"):
        await gateway.director.handle(
            uuid7(), principal(kind="test"), parse_chat(msgspec.json.encode(body)), reply
        )
    assert reply.started
    assert b'"content":"This"' in reply.body
    assert b"[DONE]" not in reply.body
    untouched(gateway)


async def test_other_names_are_unknown(gateway: Gateway) -> None:
    with pytest.raises(ModelNotFound):
        await answer(gateway, "test/nothing")
    untouched(gateway)
