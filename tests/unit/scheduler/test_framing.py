"""Frames survive any cut of the stream, and a cap is a cap."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.framing import MAX_FRAME_BYTES, FrameSplitter, FrameTooLarge, pack, read_frame


@given(st.lists(st.binary(max_size=200), max_size=20), st.randoms(use_true_random=False))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(frames: list[bytes], rng) -> None:
    stream = b"".join(map(pack, frames))
    splitter = FrameSplitter()
    got: list[bytes] = []
    while stream:
        size = rng.randint(1, 50)
        got += splitter.feed(stream[:size])
        stream = stream[size:]
    assert got == frames


async def test_the_stream_reader_agrees() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(pack(b"one") + pack(b"") + b"\x00\x00")
    reader.feed_eof()
    assert [await read_frame(reader), await read_frame(reader)] == [b"one", b""]
    with pytest.raises(EOFError):
        await read_frame(reader)


async def test_too_large_is_refused_before_it_is_read() -> None:
    splitter = FrameSplitter(10)
    assert list(splitter.feed(pack(b"x" * 10))) == [b"x" * 10]
    with pytest.raises(FrameTooLarge, match="11 bytes"):
        list(splitter.feed((11).to_bytes(4, "big")))
    reader = asyncio.StreamReader()
    reader.feed_data((11).to_bytes(4, "big"))
    with pytest.raises(FrameTooLarge):
        await read_frame(reader, 10)
    with pytest.raises(FrameTooLarge):
        pack(b"x" * (MAX_FRAME_BYTES + 1))


def test_a_greeting_lifts_the_cap_of_what_came_with_it() -> None:
    splitter = FrameSplitter(10)
    got = []
    for frame in splitter.feed(pack(b"hello") + pack(b"x" * 50) + pack(b"rest")[:5]):
        got.append(frame)
        splitter.max_bytes = 100
    assert got == [b"hello", b"x" * 50]
    assert list(splitter.feed(b"est")) == [b"rest"]
