"""Frames on our internal sockets: a 4-byte big-endian length, then that many bytes.

Two readers over the same format: `read_frame` for a stream that expects one frame at a time (the agent), and
`FrameSplitter` for protocols that take whatever the socket delivers (scheduler service and client).
"""

import asyncio
from collections.abc import Iterator

HEADER_BYTES = 4
MAX_FRAME_BYTES = 4 * 1024 * 1024


class FrameTooLarge(ValueError):
    """A peer announced a frame above the cap; the connection must be closed."""


def pack(frame: bytes) -> bytes:
    """`frame` with its length in front. Raises FrameTooLarge above 4 MiB."""
    if len(frame) > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"a frame of {len(frame)} bytes is above the cap of {MAX_FRAME_BYTES}")
    return len(frame).to_bytes(HEADER_BYTES, "big") + frame


async def read_frame(reader: asyncio.StreamReader, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """The next frame of a stream.

    Raises FrameTooLarge when the announced length is above `max_bytes` (before reading the body) and
    asyncio.IncompleteReadError (an EOFError) when the peer closes.
    """
    length = int.from_bytes(await reader.readexactly(HEADER_BYTES), "big")
    if length > max_bytes:
        raise FrameTooLarge(f"the peer announced a frame of {length} bytes, the cap is {max_bytes}")
    return await reader.readexactly(length)


class FrameSplitter:
    """Cuts a byte stream into frames; keeps at most one unfinished frame of `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that `data` completes, in order; `max_bytes` may be changed between two of them.

        A greeting may lift the cap of the frame that came in the same read. Raises FrameTooLarge; after that, or when
        not all frames are taken, the stream is lost.
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
