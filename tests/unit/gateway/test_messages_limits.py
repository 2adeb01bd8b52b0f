"""A max_tokens of Anthropic's that does not fit into the context ends the answer where the context does."""

from typing import Any

import msgspec
import pytest

from core.ids import uuid7
from gateway.dialects.messages.request import parse_messages
from tests.support.gateway_fakes import FakeEngines, FakeModel, FakeReply, Gateway, answer, principal

TOOL = {"name": "look_up", "input_schema": {"type": "object"}}


async def sent(max_tokens: int, words: list[str], **members: Any) -> tuple[Gateway, dict[str, Any]]:
    """The gateway after a request, and the body that its engine got."""
    body = {
        "model": "tiny", "max_tokens": max_tokens, "messages": [{"role": "user", "content": "Hello"}], **members,
    }  # fmt: skip
    engines = FakeEngines(answer(words))
    gateway = Gateway(engines, model=FakeModel(context_len=1000))
    prepared = parse_messages(msgspec.json.encode({"stream": True, **body}))
    await gateway.director.handle(uuid7(), principal(), prepared, FakeReply())
    gateway.assert_resolved()
    return gateway, msgspec.json.decode(engines.bodies[0])


@pytest.mark.parametrize(("asked", "told", "held"), [(100, 100, 100), (950, None, 950), (32_000, None, 1000)])
async def test_the_engine_is_told_a_limit_that_fits(asked: int, told: int | None, held: int) -> None:
    gateway, body = await sent(asked, ["a", "b"])
    assert body.get("max_tokens") == told
    assert gateway.holds.requests[0].max_output_tokens == held


async def test_the_gateway_keeps_the_limit_that_the_engine_is_not_told() -> None:
    gateway, body = await sent(3, ["a", "b", "c", "d", "e"], system="x" * 1000)
    assert "max_tokens" not in body
    assert gateway.meter.settled[0].usage.output == 3


async def test_an_answer_with_tools_is_asked_for_in_one_piece_only_with_a_limit_that_fits() -> None:
    gateway, _ = await sent(950, ["a"], tools=[TOOL], stream=False)
    assert not gateway.holds.requests[0].whole
