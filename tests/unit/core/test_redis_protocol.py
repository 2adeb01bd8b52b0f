"""The parser of Redis's replies."""

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.redis_protocol import ConnectionClosed, RedisProtocol, ReplyError, bulk, pack


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True


def encoded(reply: Any) -> bytes:
    """`reply` as a server sends it."""
    match reply:
        case ReplyError():
            return b"-%b\r\n" % str(reply).encode()
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case None:
            return b"$-1\r\n"
        case list():
            return b"*%d\r\n" % len(reply) + b"".join([encoded(part) for part in reply])
    raise AssertionError(reply)


scalars = st.integers(-(2**62), 2**62) | st.binary(max_size=20) | st.none()
replies = st.lists(
    scalars
    | st.lists(scalars, max_size=12)
    | st.sampled_from(["ERR no", "NOSCRIPT load it"]).map(ReplyError),
    max_size=8,
)


@given(replies=replies, data=st.data())
def test_replies_split_at_any_bytes_arrive_whole_and_in_order(
    replies: list[Any], data: st.DataObject
) -> None:
    stream = b"".join([encoded(reply) for reply in replies])
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)) | {0, len(stream)})
    seen: list[Any] = []
    protocol = RedisProtocol(seen.append, seen.append)
    for start, end in itertools.pairwise(cuts):
        protocol.data_received(stream[start:end])
    assert [_plain(one) for one in seen] == [_plain(one) for one in replies]


def _plain(reply: Any) -> Any:
    return ("error", str(reply)) if isinstance(reply, ReplyError) else reply


def test_bytes_that_are_no_reply_end_the_connection() -> None:
    seen: list[Any] = []
    transport = Transport()
    protocol = RedisProtocol(seen.append, seen.append)
    protocol.connection_made(transport)
    protocol.data_received(b":1\r\n?what\r\n")
    assert transport.aborted
    protocol.connection_lost(None)
    assert seen[0] == 1
    assert "Protocol error" in str(seen[1])


def test_the_end_is_reported_once_and_not_after_close() -> None:
    for close in (False, True):
        seen: list[Any] = []
        protocol = RedisProtocol(seen.append, seen.append)
        protocol.connection_made(Transport())
        if close:
            protocol.close()
        protocol.connection_lost(None)
        protocol.write(b"PING\r\n")
        assert [type(one) for one in seen] == ([] if close else [ConnectionClosed])


@pytest.mark.parametrize(
    ("parts", "expected"), [(("GET", "größe"), b"*2\r\n$3\r\nGET\r\n$7\r\ngr\xc3\xb6\xc3\x9fe\r\n")]
)
def test_commands_are_packed(parts: tuple[str, ...], expected: bytes) -> None:
    assert pack(*parts) == expected
    assert bulk(12) == b"$2\r\n12\r\n"
