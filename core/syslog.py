"""Syslog: messages as in RFC 5424, sent over TCP, TLS or UDP.

TCP and TLS frame messages by their length (RFC 6587, RFC 5425). Syslog has no acknowledgement: a sender learns of a
receiver that has gone when the connection is refused or reset, and what a receiver loses later it does not learn.
"""

import asyncio
import contextlib
import re
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

import msgspec

from core.errors import InvalidRequest, Unavailable

TIMEOUT_S = 20.0
"""Seconds in which a connection must be made and messages be taken."""
CLOSE_S = 2.0
"""Seconds that a receiver gets to close a connection at whose end it is, which tells that it has read all."""
_AUDIT = 13
"""The facility "log audit"."""
NOTICE, WARNING = 5, 4
_PORTS = {"tcp": 601, "tls": 6514, "udp": 514}
"""Ports of the schemes when an address names none."""


class Receiver(msgspec.Struct, frozen=True):
    """Where messages are sent."""

    scheme: str
    """tcp | tls | udp"""
    host: str
    port: int


def parse_receiver(url: str) -> Receiver:
    """The receiver of an address such as tls://logs.example.com:6514. Raises InvalidRequest."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    rest = parts.path or parts.query or parts.fragment or parts.username or parts.password
    if parts.scheme not in _PORTS or not parts.hostname or rest or port == 0:
        raise InvalidRequest(
            f"{url[:200]!r} is no syslog receiver: give tcp://HOST:PORT, tls://HOST:PORT or udp://HOST:PORT"
        )
    return Receiver(parts.scheme, parts.hostname, port or _PORTS[parts.scheme])


def message(*, severity: int, at: datetime, host: str, kind: str, number: int, text: str) -> bytes:
    """A message of the facility "log audit". `number` is its sequenceId, `text` must be ASCII."""
    return (
        f"<{_AUDIT * 8 + severity}>1 {at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ} {_word(host, 255)} penstock - "
        f'{_word(kind, 32)} [meta sequenceId="{number}"] {text}'
    ).encode("ascii")


async def send(receiver: Receiver, messages: Sequence[bytes]) -> None:
    """Send all messages. Raises Unavailable when the receiver does not take them; some may have arrived then."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            if receiver.scheme == "udp":
                await _send_datagrams(receiver, messages)
            else:
                await _send_stream(receiver, messages)
    except (OSError, TimeoutError) as error:
        raise Unavailable(
            f"the syslog receiver {receiver.scheme}://{receiver.host}:{receiver.port} did not take messages: "
            f"{error or 'no answer in time'}"
        ) from error


def _word(value: str, length: int) -> str:
    """`value` as a header field: printable ASCII without spaces; "-" for nothing."""
    return re.sub(r"[^!-~]", "_", value)[:length] or "-"


async def _send_stream(receiver: Receiver, messages: Sequence[bytes]) -> None:
    context = ssl.create_default_context() if receiver.scheme == "tls" else None
    reader, writer = await asyncio.open_connection(receiver.host, receiver.port, ssl=context)
    try:
        for one in messages:
            writer.write(b"%d " % len(one) + one)
            await writer.drain()
        if reader.at_eof():
            raise ConnectionResetError("it closed the connection")
        if writer.can_write_eof():
            writer.write_eof()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(), CLOSE_S)  # raises when the connection was reset
    except BaseException:
        writer.close()
        raise
    writer.close()
    with contextlib.suppress(ssl.SSLError):  # a receiver that sends no close of TLS
        await writer.wait_closed()  # what was buffered is sent; raises when the connection was reset


async def _send_datagrams(receiver: Receiver, messages: Sequence[bytes]) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, remote_addr=(receiver.host, receiver.port)
    )
    try:
        for one in messages:
            transport.sendto(one)
    finally:
        transport.close()
