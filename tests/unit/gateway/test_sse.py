"""The SSE codec: the same result however the reads fall, nothing delivered that is not counted."""

import contextlib
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import EngineFailed
from core.tokens import TokenUsage
from gateway.extras import strip_extras
from gateway.limits import MAX_EVENT_BYTES
from gateway.schemas.common import Extras
from gateway.sse import EventSplitter, StreamCodec
from tests.support.gateway_fakes import DONE, answer, chunk, final

NO_LIMIT = 1 << 30
TRICKY = [
    '"usage":{"completion_tokens":9}}',
    "data: [DONE]\n\n",
    '\\"usage\\":',
    '"error"',
    ',"choices":[]',
    "\n\n: x",
    "ü€😀",
]


def relay(
    stream: bytes, cuts: list[int], choices: int = 1, limit: int = NO_LIMIT
) -> tuple[StreamCodec, bytes]:
    """Feed `stream` cut at the given places, each part by the fast path where it fits, as the relay does."""
    codec = StreamCodec(choices, limit)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    out = b""
    for a, b in pairwise(places):
        event = codec.relay_one(stream[a:b])
        out += codec.feed(stream[a:b]) if event is None else event
    return codec, out


def texts(events: bytes) -> str:
    """The text a client would put together."""
    payloads = [event[6:] for event in events.split(b"\n\n") if event]
    return "".join(
        c["delta"].get("content") or "" for p in payloads for c in msgspec.json.decode(p)["choices"]
    )


words = st.lists(
    st.one_of(st.text(min_size=1, max_size=12), st.sampled_from(TRICKY)), min_size=1, max_size=30
)


@settings(max_examples=300, deadline=None)
@given(
    words=words,
    cuts=st.lists(st.integers(0, 8000), max_size=30),
    spaced=st.booleans(),
    crlf=st.booleans(),
    noise=st.booleans(),
)
def test_any_chunking_gives_the_same_stream(
    words: list[str], cuts: list[int], spaced: bool, crlf: bool, noise: bool
) -> None:
    events = [event for event in answer(words) if isinstance(event, bytes)]
    if spaced:
        events = [_spaced(event) for event in events]
    if noise:
        events.insert(1, b": ping\n\n")
    stream = b"".join(events)
    if crlf:
        stream = stream.replace(b"\n", b"\r\n")
    codec, out = relay(stream, cuts)
    assert texts(out) == "".join(words)
    assert b'"usage"' not in _keys(out)
    assert codec.tracker.usage == TokenUsage(5, 0, len(words))
    assert codec.done
    assert codec.complete
    assert codec.finish_reasons == {0: "stop"}
    assert b"[DONE]" not in [event[6:] for event in out.split(b"\n\n")]


def _spaced(event: bytes) -> bytes:
    """The same event as json.dumps would have written it."""
    import json

    if event == DONE:
        return event
    return b"data: " + json.dumps(json.loads(event[6:])).encode() + b"\n\n"


def _keys(events: bytes) -> bytes:
    """The top-level keys of every event."""
    payloads = [event[6:] for event in events.split(b"\n\n") if event]
    return b" ".join(b'"%s"' % key.encode() for p in payloads for key in msgspec.json.decode(p))


@settings(max_examples=150, deadline=None)
@given(count=st.integers(1, 40), limit=st.integers(1, 45), cuts=st.lists(st.integers(0, 9000), max_size=20))
def test_never_delivers_more_than_is_paid_for(count: int, limit: int, cuts: list[int]) -> None:
    stream = b"".join(event for event in answer(["w "] * count) if isinstance(event, bytes))
    codec, out = relay(stream, cuts, limit=limit)
    delivered = len(texts(out)) // 2
    assert delivered == min(count, limit)
    assert codec.tracker.output == delivered
    assert codec.limit_reached == (count > limit)
    if codec.limit_reached:
        more = codec.raise_limit(NO_LIMIT)
        assert delivered + len(texts(more)) // 2 == count
        assert codec.tracker.output == count


def test_events_that_are_merged_are_counted_and_keep_their_usage() -> None:
    codec = StreamCodec(1, NO_LIMIT, relayed=False)
    events = [chunk("a", tokens=1), chunk("b", tokens=2), chunk("c", tokens=3)]
    assert [codec.feed(event) for event in events] == events
    assert codec.tracker.output == 3
    assert codec.content_started


def test_steady_state_takes_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = StreamCodec(1, NO_LIMIT)
    codec.feed(chunk("a", tokens=1))
    monkeypatch.setattr(StreamCodec, "_count", lambda *_: pytest.fail("slow path"))
    assert texts(codec.feed(chunk("b", tokens=2))) == "b"
    assert texts(codec.feed(chunk("c", tokens=3) + chunk("d", tokens=4))) == "cd"
    event = codec.relay_one(chunk("e", tokens=5))
    assert event is not None
    assert texts(event) == "e"
    assert b"usage" not in event
    assert codec.tracker.output == 5


@pytest.mark.parametrize(
    "read",
    [
        chunk("b", tokens=2) + chunk("c", tokens=3),
        chunk("b", tokens=2)[:-1],
        chunk("b", tokens=9),
        final(2),
        DONE,
        b": comment\n\n",
    ],
    ids=["two events", "part of an event", "above the limit", "last chunk", "done", "comment"],
)
def test_the_fast_path_leaves_other_reads_alone(read: bytes) -> None:
    codec = StreamCodec(1, 8)
    codec.feed(chunk("a", tokens=1))
    assert codec.relay_one(read) is None
    assert codec.tracker.output == 1
    assert not codec.limit_reached


def test_the_fast_path_knows_the_chat_events_of_vllm() -> None:
    """They end with a null for the details of the output tokens, text completions do not."""

    def event(text: str, tokens: int) -> bytes:
        return chunk(text, tokens=tokens)[:-4] + b',"completion_tokens_details":null}}\n\n'

    codec = StreamCodec(1, NO_LIMIT)
    codec.feed(event("a", 1))
    relayed = codec.relay_one(event("b", 2))
    assert relayed is not None
    assert texts(relayed) == "b"
    assert codec.tracker.output == 2


def test_the_fast_path_relays_the_id_and_reads_the_counts_of_each_stream() -> None:
    """The bytes that streams share are kept once for all."""
    one, other = StreamCodec(1, NO_LIMIT), StreamCodec(1, NO_LIMIT)
    renamed = chunk("b", tokens=7, prompt=50).replace(b"chatcmpl-1", b"chatcmpl-2")
    one.feed(chunk("a", tokens=1))
    other.feed(renamed)
    assert one._steady is other._steady is not None
    assert other.relay_one(chunk("c", tokens=8)) is None  # the prompt is not that of the stream
    for codec, event in ((one, chunk("c", tokens=2)), (other, renamed)):
        relayed = codec.relay_one(event)
        assert relayed is not None
        assert relayed == event[: event.rindex(b',"usage"')] + b"}\n\n"
    assert (one.tracker.output, other.tracker.output) == (2, 7)


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        (b'"index":0', b'"index":1'),
        (b'"model":"', b'"nodel":"'),
        (b'"object":"', b'"odject":"'),
        (b"data: ", b"dada: "),
    ],
)
def test_an_event_of_another_form_is_decoded(found: bytes, instead: bytes) -> None:
    codec = StreamCodec(1, NO_LIMIT)
    codec.feed(chunk("a", tokens=1))
    event = chunk("b", tokens=2)
    assert event.count(found) == 1
    assert codec.relay_one(event.replace(found, instead)) is None


def reasoning_event(text: str, tokens: int, *, counted: bool, name: str = "reasoning") -> bytes:
    """An event of reasoning as vLLM writes it, or as an engine does that does not count reasoning."""
    details = b',"completion_tokens_details":{"reasoning_tokens":%d}' % tokens if counted else b""
    event = chunk(text, tokens=tokens)[:-4] + details + b"}}\n\n"
    event = event.replace(b'"finish_reason":null}', b'"finish_reason":null,"token_ids":null}')
    return event.replace(b'"content"', b'"%b"' % name.encode())


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("counted", [True, False])
def test_reasoning_has_both_names_and_is_counted(counted: bool, name: str) -> None:
    codec = StreamCodec(1, NO_LIMIT)
    texts = ["a", 'b"', "c\\", "d"]
    out = b"".join(
        codec.relay_one(event) or codec.feed(event)
        for event in (
            reasoning_event(text, number + 1, counted=counted, name=name) for number, text in enumerate(texts)
        )
    )
    deltas = [msgspec.json.decode(event[6:])["choices"][0]["delta"] for event in out.split(b"\n\n") if event]
    assert deltas == [{"reasoning": text, "reasoning_content": text} for text in texts]
    assert b"token_ids" not in out
    assert codec.tracker.usage == TokenUsage(5, 0, 4, 4)
    codec.feed(chunk("x", tokens=5))
    assert codec.tracker.usage == TokenUsage(5, 0, 5, 4)


def test_text_after_reasoning_takes_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def text(word: str, tokens: int) -> bytes:
        counted = b',"completion_tokens_details":{"reasoning_tokens":1}}}\n\n'
        return chunk(word, tokens=tokens)[:-4] + counted

    codec = StreamCodec(1, NO_LIMIT)
    codec.feed(reasoning_event("a", 1, counted=True))
    assert codec.relay_one(reasoning_event("b", 2, counted=True)) is None  # its bytes change
    codec.feed(text("c", 2))
    monkeypatch.setattr(StreamCodec, "_count", lambda *_: pytest.fail("slow path"))
    event = codec.relay_one(text("d", 3))
    assert event is not None
    assert texts(event) == "d"
    assert codec.tracker.usage == TokenUsage(5, 0, 3, 1)


def test_the_fast_path_waits_for_the_end_of_an_event() -> None:
    codec = StreamCodec(1, NO_LIMIT)
    codec.feed(chunk("a", tokens=1))
    event = chunk("b", tokens=2)
    assert codec.feed(event[:20]) == b""
    assert codec.relay_one(chunk("x", tokens=3)) is None
    assert texts(codec.feed(event[20:])) == "b"
    assert codec.relay_one(chunk("c", tokens=3)) is not None


def test_the_fast_path_stops_at_the_limit_until_it_is_raised() -> None:
    codec = StreamCodec(1, 2)
    codec.feed(chunk("a", tokens=1))
    assert codec.relay_one(chunk("b", tokens=2)) is not None
    assert codec.relay_one(chunk("c", tokens=3)) is None
    assert codec.feed(chunk("c", tokens=3)) == b""
    assert codec.relay_one(chunk("d", tokens=2)) is None
    codec.feed(chunk("d", tokens=4))
    assert texts(codec.raise_limit(9)) == "cd"
    assert codec.relay_one(chunk("e", tokens=5)) is not None


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    limit=st.integers(1, 200),
    raised=st.lists(st.integers(1, 60), max_size=6),
    cuts=st.lists(st.integers(0, 3000), max_size=8),
)
def test_events_of_several_tokens_stay_within_what_is_paid_for(
    sizes: list[int], limit: int, raised: list[int], cuts: list[int]
) -> None:
    """Counted = delivered <= paid for <= generated, and no event is lost when the limit rises."""
    events, total = [], 0
    for size in sizes:
        total += size
        events.append(chunk("w " * size, tokens=total))
    codec, out = relay(b"".join(events), cuts, limit=limit)
    for more in [*raised, NO_LIMIT]:
        delivered = len(texts(out)) // 2
        assert codec.tracker.output == delivered <= limit
        if not codec.limit_reached:
            break
        assert delivered <= limit < codec.withheld_output <= total
        limit += more
        out += codec.raise_limit(limit)
    assert len(texts(out)) // 2 == total


def test_counts_of_several_choices_add_up() -> None:
    parts = [chunk("a", tokens=1, index=0), chunk("b", tokens=1, index=1), chunk("c", tokens=2, index=0)]
    codec, out = relay(b"".join(parts), [], choices=2)
    assert texts(out) == "abc"
    assert codec.tracker.usage == TokenUsage(5, 0, 3)
    assert not codec.complete
    codec.feed(chunk("", tokens=2, index=0, finish="stop") + chunk("", tokens=1, index=1, finish="length"))
    assert codec.complete
    codec.feed(final(3, cached=4))
    assert codec.tracker.usage == TokenUsage(5, 4, 3)


def test_error_events_and_nonsense() -> None:
    codec, out = relay(chunk("a", tokens=1) + b'data: {"error":{"message":"died","code":500}}\n\n' + DONE, [])
    assert codec.error == b'{"message":"died","code":500}'
    assert texts(out) == "a"
    with pytest.raises(EngineFailed):
        StreamCodec(1, NO_LIMIT).feed(b"data: {broken\n\n")
    with pytest.raises(EngineFailed):
        EventSplitter().feed(b"x" * (MAX_EVENT_BYTES + 1))


def test_unfinished_events_are_not_relayed() -> None:
    codec = StreamCodec(1, NO_LIMIT)
    whole = chunk("a", tokens=1)
    assert codec.feed(whole[:-1]) == b""
    assert texts(codec.feed(whole[-1:])) == "a"


def test_members_of_the_engines_own_are_stripped_wherever_they_stand() -> None:
    end = b'"index":0,"delta":{"content":"a"},"logprobs":{"content":[1]},"finish_reason":"stop","stop_reason":"."'
    for payload in (
        b'{"id":"x","choices":[{%b}],"usage":{"a":{"b":1}}}' % end,
        b'{"usage":{"a":1},"id":"x","prompt_token_ids":[1],"choices":[{%b,"token_ids":[7]}]}' % end,
        b'{"id":"x","choices":[{"matched_stop":".",%b}], "usage": null,"metrics":{"s":1}}' % end,
    ):
        choice = {"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": "stop"}
        assert msgspec.json.decode(strip_extras(payload, Extras())) == {"id": "x", "choices": [choice]}
        asked = {**choice, "logprobs": {"content": [1], "refusal": None}, "stop_reason": "."}
        assert msgspec.json.decode(strip_extras(payload, Extras(True, True))) == {
            "id": "x",
            "choices": [asked],
        }


def test_ids_of_tokens_are_relayed_when_they_are_asked_for() -> None:
    """The members of each event as the engine wrote them, and no event is taken for one like the last."""
    asked = Extras(token_ids=True)
    codec, out = StreamCodec(1, NO_LIMIT, extras=asked), []
    for number, word in enumerate(("a", "b", "c"), 1):
        told = b'"token_ids":[7,%d]' % number
        event = chunk(word, tokens=number).replace(b'"finish_reason":null', b'"finish_reason":null,' + told)
        if number == 1:
            event = event.replace(b'"choices"', b'"prompt_token_ids":[1,2],"choices"')
        assert codec.relay_one(event) is None
        out.append(msgspec.json.decode(codec.feed(event)[6:]))
    assert [each["choices"][0]["token_ids"] for each in out] == [[7, 1], [7, 2], [7, 3]]
    assert [each.get("prompt_token_ids") for each in out] == [[1, 2], None, None]
    payload = b'{"choices":[{"index":0,"text":"a","prompt_token_ids":[1],"token_ids":null}],"prompt_token_ids":null}'
    choice = {"index": 0, "text": "a", "prompt_token_ids": [1]}
    assert msgspec.json.decode(strip_extras(payload, asked)) == {"choices": [choice]}
    assert b"token_ids" not in strip_extras(payload, Extras(True, True))


@given(st.binary(max_size=200))
def test_bytes_from_hell_fail_cleanly(data: bytes) -> None:
    codec = StreamCodec(1, NO_LIMIT)
    with contextlib.suppress(EngineFailed):
        out = codec.feed(b"data: " + data + b"\n\n")
        assert out == b"" or out.endswith(b"\n\n")
    assert not codec.content_started or codec.tracker.output > 0


_HOSTILE = [
    b'event: error\nid: 7\nretry: 1\n{"bare": true}\nSet-Cookie: a=b\ndata: %b\nLocation: http://x\n\n',
    b": comment\ndata:%b\n\n",
    b"data: %b\r\nX-Evil: 1\r\n\r\n",
]
"""Events with lines that are no data, around the data of one chunk."""


@pytest.mark.parametrize("shell", _HOSTILE)
@pytest.mark.parametrize("several_lines", [False, True])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_what_a_client_gets_is_data_lines_alone(shell: bytes, several_lines: bool, size: int) -> None:
    stream = b""
    for event in (chunk("", role=True), chunk("one", tokens=1), chunk("two", tokens=2)):
        data = event[6:-2]
        if several_lines:
            data = data.replace(b',"choices"', b',\ndata: "choices"').replace(
                b'"content"', b'\ndata:"content"'
            )
        stream += shell % data
    stream += DONE
    _, out = relay(stream, list(range(0, len(stream), size)))
    events = out.split(b"\n\n")
    assert events.pop() == b""
    assert len(events) == 3
    assert all(event.startswith(b'data: {"') and b"\n" not in event for event in events)
    assert texts(out) == "onetwo"
