"""A stream means the same wherever its reads begin and end: at every single byte, one byte at a time, and at random."""

from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.sse import EventSplitter, StreamCodec
from tests.support.gateway_fakes import DONE, chunk, final

NO_LIMIT = 1 << 30
ERROR = b'data: {"error":{"message":"died","code":500}}\n\n'
text = st.one_of(
    st.text(min_size=1, max_size=6), st.sampled_from(['"usage":{', "data: [DONE]\n\n", "\n\n", "ü😀\\"])
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, int]:
    """The bytes of an engine's stream and its number of choices: any order of choices, reasoning, calls, comments."""
    choices = draw(st.integers(1, 3))
    dialect = draw(st.sampled_from(["chat", "text"]))
    counts = [0] * choices
    events = [chunk("", tokens=0, role=True, index=index) for index in range(choices) if dialect == "chat"]
    for _ in range(draw(st.integers(1, 6))):
        index = draw(st.integers(0, choices - 1))
        counts[index] += draw(st.integers(1, 3))
        said = chunk(draw(text), tokens=counts[index], index=index, dialect=dialect)
        kind = draw(st.sampled_from(["text", "text", "reasoning", "call", "comment"]))
        if kind == "reasoning":
            said = said.replace(b'"content"', b'"reasoning"')
        elif kind == "call" and dialect == "chat":
            called = b'"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}],"content"'
            said = said.replace(b'"content"', called)
        elif kind == "comment":
            events.append(b": still here\n\n")
        events.append(said)
    if draw(st.booleans()):
        events.append(ERROR)
    else:
        for index, count in enumerate(counts):
            finish = draw(st.sampled_from(["stop", "length"]))
            events.append(chunk("", tokens=count, finish=finish, index=index, dialect=dialect))
        events += [final(sum(counts)), DONE]
    stream = b"".join(events)
    return stream.replace(b"\n", b"\r\n") if draw(st.booleans()) else stream, choices


def relayed(stream: bytes, choices: int, places: list[int]) -> dict[str, Any]:
    """What a client and the books get of a stream that is read in parts, as the relay reads it."""
    codec = StreamCodec(choices, NO_LIMIT)
    out = b""
    for start, stop in pairwise(sorted({0, len(stream), *places})):
        quick = codec.relay_one(stream[start:stop])
        out += codec.feed(stream[start:stop]) if quick is None else quick
    assert out == b"" or out.endswith(b"\n\n")
    return {
        "events": [_without_nulls(msgspec.json.decode(each[6:])) for each in out.split(b"\n\n") if each],
        "usage": codec.tracker.usage, "ends": codec.finish_reasons, "done": codec.done, "error": codec.error,
        "complete": codec.complete, "began": codec.content_started,
    }  # fmt: skip


def _without_nulls(value: Any) -> Any:
    """Without null members: of the engine's own ones they remain in events that are relayed unchanged."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


@settings(max_examples=20)
@given(streams())
def test_every_border_gives_the_same_stream(stream: tuple[bytes, int]) -> None:
    data, choices = stream
    whole = relayed(data, choices, [])
    assert whole["events"]
    assert whole["done"] or whole["error"]
    for border in range(1, len(data)):
        assert relayed(data, choices, [border]) == whole, data[:border]
    assert relayed(data, choices, list(range(len(data)))) == whole


@settings(max_examples=150)
@given(streams(), st.lists(st.integers(0, 4000), max_size=12))
def test_any_borders_give_the_same_stream(stream: tuple[bytes, int], places: list[int]) -> None:
    data, choices = stream
    within = [place for place in places if place < len(data)]
    assert relayed(data, choices, within) == relayed(data, choices, [])


@given(streams(), st.lists(st.integers(0, 4000), max_size=12))
def test_the_splitter_returns_whole_events_and_loses_no_byte(
    stream: tuple[bytes, int], places: list[int]
) -> None:
    data = stream[0]
    splitter, out = EventSplitter(), b""
    for start, stop in pairwise(sorted({0, len(data), *(each for each in places if each < len(data))})):
        block = splitter.feed(data[start:stop])
        assert block == b"" or block.endswith(b"\n\n")
        out += block
    assert out == data.replace(b"\r\n", b"\n")
