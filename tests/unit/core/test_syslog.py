"""Addresses of syslog receivers, and messages as RFC 5424 wants them."""

import re
from datetime import UTC, datetime

import pytest

from core.errors import InvalidRequest
from core.syslog import NOTICE, Receiver, message, parse_receiver


@pytest.mark.parametrize(
    ("url", "receiver"),
    [
        ("tcp://logs:1601", Receiver("tcp", "logs", 1601)),
        ("tls://logs.example.com", Receiver("tls", "logs.example.com", 6514)),
        ("udp://[::1]", Receiver("udp", "::1", 514)),
    ],
)
def test_addresses(url: str, receiver: Receiver) -> None:
    assert parse_receiver(url) == receiver


@pytest.mark.parametrize(
    "url",
    ["logs:601", "http://logs", "tcp://", "tcp://logs:0", "tcp://logs:x", "tls://me@logs", "tcp://logs/a"],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InvalidRequest, match="is no syslog receiver"):
        parse_receiver(url)


def test_a_message_has_the_header_of_rfc_5424() -> None:
    at = datetime(2026, 11, 29, 4, 5, 6, 7, UTC)
    made = message(severity=NOTICE, at=at, host="a b\n", kind="x" * 40, number=12, text='{"a":1}').decode()
    assert made == (
        "<109>1 2026-11-29T04:05:06.000007Z a_b_ penstock - " + "x" * 32 + ' [meta sequenceId="12"] {"a":1}'
    )
    assert re.fullmatch(r"<\d{1,3}>1 \S+ \S+ \S+ \S+ \S+ \[.+?\] .+", made)
