"""Tool calls that the limit of an answer in one piece cuts off: their text reaches no customer, and is billed."""

from typing import Any

import msgspec
import pytest

from billing.metering.records import Outcome
from core.ids import uuid7
from core.tokens import TokenUsage
from gateway.dialects.messages.stream import MessageTranslation
from gateway.dialects.responses.parser import parse_responses
from gateway.dialects.responses.translation import ResponseTranslation
from gateway.unfinished_calls import OPENINGS
from tests.support.gateway_fakes import FakeEngines, FakeModel, FakeReply, Gateway, principal
from tests.unit.gateway.test_whole import document, tools
from workers.catalog import load_catalog

NAMED = {"type": "function", "function": {"name": "f"}}
CUT = '{"name": "f", "arguments": {"city": "Ber'


async def answer_of(
    content: str, parser: str = "hermes", reason: str = "length", **more: Any
) -> dict[str, Any]:
    """The answer to a request with tools whose engine could not parse `content`, which is billed in any case."""
    body = document(content=content).replace(
        b'"finish_reason":"tool_calls"', b'"finish_reason":"%b"' % reason.encode()
    )
    gateway, reply = Gateway(FakeEngines([body]), model=FakeModel(tool_parser=parser)), FakeReply()
    await gateway.director.handle(uuid7(), principal(), tools(max_tokens=9, **more), reply)
    [record] = gateway.meter.settled
    assert record.usage == TokenUsage(5, 2, 9)
    assert record.outcome is (Outcome.LENGTH if reason == "length" else Outcome.COMPLETED)
    gateway.assert_resolved()
    found: dict[str, Any] = msgspec.json.decode(reply.body)
    return found


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_of_a_forced_call_nothing_is_text(choice: object) -> None:
    answer = await answer_of(CUT, tool_choice=choice)
    assert answer["choices"][0]["message"]["content"] is None
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("parser", "content", "left"),
    [
        ("hermes", "Let me look.\n<tool_call>\n" + CUT, "Let me look."),
        ("hermes", "<tool_call>\n" + CUT, None),
        ("hermes", "A long answer with { braces", "A long answer with { braces"),
        ("qwen3_coder", "So: <tool_call>\n<function=f>\n<parameter=city>Ber", "So:"),
        ("deepseek_v32", 'So: <｜DSML｜function_calls>\n<｜DSML｜invoke name="f">', "So:"),
        ("minimax_m2", 'So: <minimax:tool_call>\n<invoke name="f">', "So:"),
        ("llama3_json", "<|python_tag|>" + CUT, None),
        ("llama3_json", '{"type": "function", "name": "f", "parameters": {"ci', None),
        ("llama3_json", '{"name": "f", "parameters": {"ci', None),
        ("llama3_json", '{"city": "Ber', '{"city": "Ber'),
        ("", "So: <tool_call>\n" + CUT, "So:"),
    ],
)
async def test_markup_of_a_call_is_cut_off(parser: str, content: str, left: str | None) -> None:
    answer = await answer_of(content, parser)
    assert answer["choices"][0]["message"]["content"] == left


async def test_the_text_of_an_answer_that_ended_by_itself_is_the_models() -> None:
    content = "Write <tool_call> to begin a call."
    answer = await answer_of(content, reason="stop")
    assert answer["choices"][0]["message"]["content"] == content


async def test_the_other_dialects_have_no_markup() -> None:
    answer = msgspec.json.encode(await answer_of(CUT, tool_choice="required"))
    message = msgspec.json.decode(MessageTranslation(uuid7(), "hidden", 9).whole(answer))
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    prepared = parse_responses(b'{"model": "tiny", "input": "hi"}')
    response = msgspec.json.decode(ResponseTranslation(uuid7(), prepared, lambda: 0.0).whole(answer))
    assert (response["output"], response["status"]) == ([], "incomplete")


def test_every_parser_of_the_catalog_has_an_opening() -> None:
    parsers = {model.tool_parser for model in load_catalog().models.values()} - {""}
    assert parsers <= OPENINGS.keys()
