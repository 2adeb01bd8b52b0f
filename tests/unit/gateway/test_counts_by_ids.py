"""Streams without running usage are counted by the ids of their tokens, as exactly as by usage."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ids import uuid7
from core.tokens import TokenUsage
from gateway.limits import MAX_EVENT_BYTES, TOKEN_ID_BYTES
from gateway.prompt_batches import PromptBatch
from gateway.schemas.chat import parse_chat
from gateway.sse import StreamCodec
from gateway.usage import UsageTracker
from tests.support.gateway_fakes import DONE, FakeEngines, FakeModel, FakeReply, Gateway, Script, principal

NO_LIMIT = 1 << 30
PROMPT = 7


def event(ids: int | None, *, choice: int = 0, text: str = "a", usage: Any = None, **more: Any) -> bytes:
    """An event with `ids` ids of tokens, as vLLM writes it; None = it has none of them."""
    listed = None if ids is None else list(range(100, 100 + ids))
    part = {"index": choice, "delta": {"content": text}, "finish_reason": None, "token_ids": listed}
    document = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [part]}
    return b"data: %b\n\n" % msgspec.json.encode({**document, "usage": usage, **more})


def first(choice: int = 0, *, usage: Any = None) -> bytes:
    """The event that begins a choice of a chat, with the ids of the prompt."""
    return event(None, choice=choice, text="", usage=usage, prompt_token_ids=list(range(PROMPT)))


def last(output: int) -> bytes:
    """The event with the usage of the whole stream."""
    usage = {"prompt_tokens": PROMPT, "completion_tokens": output}
    return b"data: %b\n\n" % msgspec.json.encode({"id": "c", "choices": [], "usage": usage})


@given(pieces=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=20))
def test_ids_count_what_usage_counts(pieces: list[tuple[int, int]]) -> None:
    by_usage, by_ids = StreamCodec(3, NO_LIMIT), StreamCodec(3, NO_LIMIT, counts_ids=True)
    sums = [0, 0, 0]
    for choice in range(3):
        by_usage.feed(first(choice, usage={"prompt_tokens": PROMPT, "completion_tokens": 0}))
        by_ids.feed(first(choice))
    for choice, tokens in pieces:
        sums[choice] += tokens
        running = {"prompt_tokens": PROMPT, "completion_tokens": sums[choice]}
        text = "a" * tokens
        by_usage.feed(event(None, choice=choice, text=text, usage=running))
        by_ids.feed(event(tokens, choice=choice, text=text))
        assert by_ids.tracker.usage == by_usage.tracker.usage == TokenUsage(PROMPT, 0, sum(sums))
    by_ids.feed(last(sum(sums)))
    assert by_ids.tracker.usage == TokenUsage(PROMPT, 0, sum(sums))


def test_prompts_of_a_text_completion() -> None:
    """Their ids stand in the first event of each choice; two choices of one prompt count it once."""
    codec = StreamCodec(4, NO_LIMIT, counts_ids=True)
    codec.tracker = UsageTracker(4, 2)
    for choice in range(4):
        part = {
            "index": choice,
            "text": "a",
            "prompt_token_ids": [1] * (3 + choice // 2),
            "token_ids": [5, 6],
        }
        codec.feed(b"data: %b\n\n" % msgspec.json.encode({"id": "c", "choices": [part]}))
    assert codec.tracker.usage == TokenUsage(3 + 4, 0, 8)


def test_an_event_beyond_the_limit_is_counted_once() -> None:
    codec = StreamCodec(1, 5, counts_ids=True)
    assert codec.feed(first() + event(4))
    assert codec.feed(event(4)) == b""
    assert (codec.limit_reached, codec.withheld_output, codec.tracker.output) == (True, 8, 4)
    assert codec.raise_limit(8)
    assert codec.tracker.output == 8


def test_an_event_without_ids_has_a_token_where_it_has_content() -> None:
    codec = StreamCodec(1, NO_LIMIT, counts_ids=True)
    codec.feed(first() + event(None) + event(None, text="") + event(3) + event(0, text=""))
    assert codec.tracker.usage == TokenUsage(PROMPT, 0, 4)


def test_usage_of_the_engine_comes_first() -> None:
    codec = StreamCodec(1, NO_LIMIT, counts_ids=True)
    codec.feed(event(1, usage={"prompt_tokens": 9, "completion_tokens": 2}))
    assert codec.tracker.usage == TokenUsage(9, 0, 2)


def test_a_further_batch_of_prompts_is_counted_beside_the_first() -> None:
    codec = StreamCodec(2, NO_LIMIT, counts_ids=True)
    for number in range(2):
        codec.begin_batch(PromptBatch(number, number, 1, 100, number == 1))
        codec.feed(first() + event(3) + DONE)
    assert codec.tracker.usage == TokenUsage(2 * PROMPT, 0, 6)


def body(**more: object) -> bytes:
    return msgspec.json.encode({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **more})


SCRIPT: Script = [first(), event(2), event(3, text="b"), last(5), DONE]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("asks", [True, False])
async def test_a_customer_gets_ids_only_when_asking_for_them(stream: bool, asks: bool) -> None:
    engines, reply = FakeEngines(SCRIPT), FakeReply()
    gateway = Gateway(engines)
    gateway.scheduler.counts_ids = True
    more = {"return_token_ids": True} if asks else {}
    await gateway.director.handle(uuid7(), principal(), parse_chat(body(stream=stream, **more)), reply)
    assert msgspec.json.decode(engines.bodies[0])["return_token_ids"] is True
    assert (b'"token_ids"' in reply.body) is asks
    assert (b'"prompt_token_ids"' in reply.body) is asks
    assert gateway.meter.settled[0].usage == TokenUsage(PROMPT, 0, 5)


@pytest.mark.parametrize(("tokens", "counts"), [(MAX_EVENT_BYTES // TOKEN_ID_BYTES, True), (10**6, False)])
async def test_a_prompt_whose_ids_are_too_much_for_an_event_is_not_listed(tokens: int, counts: bool) -> None:
    engines = FakeEngines(SCRIPT)
    gateway = Gateway(engines, model=FakeModel(context_len=tokens))
    gateway.scheduler.counts_ids = True
    long = body(messages=[{"role": "user", "content": "word " * 100_000}], stream=True)
    await gateway.director.handle(uuid7(), principal(), parse_chat(long), FakeReply())
    assert ("return_token_ids" in msgspec.json.decode(engines.bodies[0])) is counts
