"""Errors of checks that know chat's fields name those that the caller of another API sent."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from core.errors import EngineFailed, InvalidRequest, PenstockError, RequestTooLarge, UnsupportedField
from core.ids import uuid7
from gateway.dialects.dialect import Dialect
from gateway.dialects.messages.dialect import MessagesDialect
from gateway.dialects.messages.request import parse_messages
from gateway.dialects.responses.parser import parse_responses
from gateway.dialects.responses.translation import Responses
from gateway.refusals import RefusedByEngine, invalid_request
from gateway.schemas.common import PreparedRequest
from tests.support.gateway_fakes import FakeEngines, FakeModel, FakeReply, Gateway, principal

MESSAGES: Any = MessagesDialect(lambda: None)  # type: ignore[arg-type, return-value]
RESPONSES = Responses(lambda: 0.0)
ID = UUID(int=1)
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"name": "look", "input_schema": SCHEMA}


def message(**members: Any) -> PreparedRequest:
    body = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}], **members}
    return parse_messages(msgspec.json.encode(body))


def response(**members: Any) -> PreparedRequest:
    return parse_responses(msgspec.json.encode({"model": "tiny", "input": "Hello", **members}))


@pytest.mark.parametrize(
    ("dialect", "chat", "own"),
    [
        (RESPONSES, "max_tokens", "max_output_tokens"),
        (RESPONSES, "messages", "input"),
        (RESPONSES, "messages[3].tool_calls[0].id", "input"),
        (RESPONSES, "response_format", "text.format"),
        (RESPONSES, "reasoning_effort", "reasoning.effort"),
        (RESPONSES, "logprobs", "top_logprobs"),
        (RESPONSES, "tools[1].function.name", "tools[1].name"),
        (RESPONSES, "temperature", "temperature"),
        (MESSAGES, "max_tokens", "max_tokens"),
        (MESSAGES, "messages", "messages"),
        (MESSAGES, "stop", "stop_sequences"),
        (MESSAGES, "response_format", "output_config.format"),
        (MESSAGES, "reasoning_effort", "output_config.effort"),
        (MESSAGES, "tools[1].function.parameters", "tools[1].input_schema"),
        (MESSAGES, "tools[1].function.name", "tools[1].name"),
    ],
)
def test_names(dialect: Dialect, chat: str, own: str) -> None:
    error = RequestTooLarge(f"The value of '{chat}' is too large.", param=chat, details={"most": 4})
    told = dialect.names.in_error(error)
    assert (type(told), told.param, told.details) == (RequestTooLarge, own, {"most": 4})
    assert told.message == f"The value of '{own}' is too large."
    assert dialect.names.in_error(told).message == told.message  # names are not translated twice


def test_sentences_and_other_errors_stay() -> None:
    sentence = "Send at most 4 stop sequences, fewer messages, or no logprobs."
    for dialect in (MESSAGES, RESPONSES):
        assert dialect.names.in_error(InvalidRequest(sentence)).message == sentence
        failed = EngineFailed("'messages' and 'max_tokens'")
        assert dialect.names.in_error(failed) is failed


async def refused_by_director(prepared: PreparedRequest, **model: Any) -> PenstockError:
    gateway = Gateway(FakeEngines(), model=FakeModel(**model))
    with pytest.raises(InvalidRequest) as caught:
        await gateway.director.handle(uuid7(), principal(), prepared, FakeReply())
    return caught.value


async def test_a_limit_that_does_not_fit() -> None:
    error = await refused_by_director(response(max_output_tokens=5000), context_len=1000)
    told = RESPONSES.names.in_error(error)
    assert told.param == "max_output_tokens"
    assert told.message.startswith("max_output_tokens is 5,000")


async def test_tools_of_a_model_without() -> None:
    prepared = message(tools=[TOOL])
    error = MESSAGES.names.in_error(await refused_by_director(prepared, capabilities=("chat",)))
    assert (type(error), error.param) == (UnsupportedField, "tools")


@pytest.mark.parametrize(
    ("dialect", "prepared", "text", "param", "field"),
    [
        (RESPONSES, response(), "maximum context length is 9 tokens", "", "input"),
        (RESPONSES, response(text={"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}),
         "Grammar error: Invalid type: strin", "", "text.format"),
        (RESPONSES, response(max_output_tokens=4), "bad", "max_tokens", "max_output_tokens"),
        (MESSAGES, message(stop_sequences=["x"]), "bad", "body.stop", "stop_sequences"),
        (MESSAGES, message(output_format={"type": "json_schema", "schema": SCHEMA}),
         "Grammar error: Invalid type: strin", "", "output_config.format"),
        (MESSAGES, message(), "maximum context length is 9 tokens", "", "messages"),
    ],
)  # fmt: skip
def test_refusals_of_engines(
    dialect: Dialect, prepared: PreparedRequest, text: str, param: str, field: str
) -> None:
    error = dialect.names.in_error(invalid_request(RefusedByEngine(text, param), "tiny", prepared.fields))
    assert error.param == field
    for other in ("response_format", "max_tokens'", "'stop'"):
        assert other not in error.message


def test_the_parsers_of_dialects_name_their_own_fields() -> None:
    with pytest.raises(InvalidRequest) as twice:
        message(tools=[TOOL, TOOL])
    assert twice.value.param == "tools[1].name"
    with pytest.raises(InvalidRequest) as unknown:
        response(max_tokens=4)
    assert unknown.value.param == "max_tokens"  # the caller sent a field of chat
