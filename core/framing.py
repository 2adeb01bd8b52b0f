"""Frames on internal sockets: a 4-byte big-endian length, then that many bytes.

The format has two readers: `read_frame` reads one frame from a stream (the agent), and `FrameSplitter` accepts any
chunk of bytes, as an asyncio protocol receives them (scheduler service and client).
"""

import asyncio
from collections.abc import Iterator

HEADER_BYTES = 4
MAX_FRAME_BYTES = 4 * 1024 * 1024
"""Largest frame without its header; a peer that announces a larger one is disconnected."""


class FrameTooLarge(ValueError):
    """A frame is larger than allowed; the connection must be closed."""


def pack(frame: bytes) -> bytes:
    """`frame` with its header. Raises FrameTooLarge above MAX_FRAME_BYTES."""
    if len(frame) > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"a frame of {len(frame)} bytes is above the cap of {MAX_FRAME_BYTES}")
    return len(frame).to_bytes(HEADER_BYTES, "big") + frame


async def read_frame(reader: asyncio.StreamReader, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """The next frame of a stream, without its header.

    Raises FrameTooLarge, before reading the body, when the announced length is above `max_bytes`, and
    asyncio.IncompleteReadError (an EOFError) when the peer closes.
    """
    length = int.from_bytes(await reader.readexactly(HEADER_BYTES), "big")
    if length > max_bytes:
        raise FrameTooLarge(f"the peer announced a frame of {length} bytes, the cap is {max_bytes}")
    return await reader.readexactly(length)


class FrameSplitter:
    """Splits a byte stream into frames; buffers at most one incomplete frame of `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that `data` completes, in order, without their headers.

        `max_bytes` may be changed between two of them: a first frame that authenticates the peer can raise it for the
        frames of the same read. Raises FrameTooLarge. After that, or unless the iterator is exhausted, the splitter
        cannot be used again.
        """
        rest = self._rest
        rest += data
        start = 0
        while len(rest) - start >= HEADER_BYTES:
            length = int.from_bytes(rest[start : start + HEADER_BYTES], "big")
            if length > self.max_bytes:
                raise FrameTooLarge(
                    f"the peer announced a frame of {length} bytes, the cap is {self.max_bytes}"
                )
            end = start + HEADER_BYTES + length
            if len(rest) < end:
                break
            yield bytes(rest[start + HEADER_BYTES : end])
            start = end
        del rest[:start]
