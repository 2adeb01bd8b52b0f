"""Allowed webhook addresses, signatures, retry delays, SMTP URLs, thresholds."""

import hashlib
import hmac
from ipaddress import IPv4Address, IPv6Address, ip_network
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.notifications.alerts import reached_thresholds
from billing.notifications.delivery import MAX_ATTEMPTS, retry_delay_s
from billing.notifications.mail import SmtpServer, compose, parse_smtp
from billing.notifications.webhooks import check_url, endpoint_secret, signature
from core.errors import InvalidRequest
from core.public_addresses import AddressRefused, guarded_socket, is_public, parse_hosts

NONE: frozenset[str] = frozenset()
ENDPOINT = UUID(int=7)


@pytest.mark.promise(20)
@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/x",
        "ftp://hooks.example.com/x",
        "https://",
        "https:///x",
        "//hooks.example.com",
        "https://localhost/x",
        "https://hooks/x",
        "https://hooks.internal/x",
        "https://metadata.google.internal/computeMetadata/v1",
        "https://hooks.localhost./x",
        "https://127.0.0.1/x",
        "https://127.1/x",
        "https://2130706433/x",
        "https://0x7f.0.0.1/x",
        "https://0.0.0.0/x",
        "https://10.0.0.1/x",
        "https://172.16.0.1/x",
        "https://192.168.1.1/x",
        "https://169.254.169.254/latest/meta-data",
        "https://100.100.100.200/",
        "https://224.0.0.1/",
        "https://[::1]/x",
        "https://[::]/x",
        "https://[fd00:ec2::254]/x",
        "https://[fe80::1]/x",
        "https://[::ffff:127.0.0.1]/x",
        "https://[::ffff:a9fe:a9fe]/x",
        "https://[2002:7f00:1::]/x",
        "https://[64:ff9b::7f00:1]/x",
        "https://user@hooks.example.com/x",
        "https://user:pw@hooks.example.com/x",
        "https://hooks.example.com/x#part",
        "https://hooks.example.com:99999/x",
        "https://hooks.example.com:0/x",
        "https://hooks.example.com/a b",
        "https://hooks.example.com\\@127.0.0.1/x",
        "https://hooks.example.com/\r\nHost: other",
        "https://hooks.example.com/" + "x" * 500,
        "https://höoks.example.com/x",
    ],
)
def test_an_address_inside_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="the webhook address"):
        check_url(url, NONE)


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/penstock?team=1",
        "https://hooks.example.com:8443/x",
        "https://8.8.8.8/x",
        "https://[2606:4700::1111]/x",
        "https://hooks.xn--p1ai/x",
    ],
)
def test_an_address_outside_is_taken(url: str) -> None:
    assert check_url(url, NONE) == url


def test_the_operator_may_allow_hosts() -> None:
    allowed = parse_hosts(" 127.0.0.1, Hooks.Internal ,")
    assert allowed == {"127.0.0.1", "hooks.internal"}
    for url in ("http://127.0.0.1:9000/x", "https://hooks.internal/x"):
        assert check_url(url, allowed) == url
    for url in ("http://127.0.0.2/x", "file://127.0.0.1/etc/passwd", "http://hooks.internal.evil/x"):
        with pytest.raises(InvalidRequest):
            check_url(url, allowed)


PRIVATE = [
    ip_network(n)
    for n in ("0.0.0.0/8", "10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")
]


@pytest.mark.promise(20)
@given(st.sampled_from(PRIVATE), st.integers(0, 2**32))
def test_no_private_address_passes_bare_or_wrapped(network: object, offset: int) -> None:
    v4 = IPv4Address(int(network.network_address) + offset % network.num_addresses)  # type: ignore[attr-defined]
    assert not is_public(str(v4))
    for prefix in (0xFFFF << 32, int(IPv6Address("64:ff9b::"))):
        assert not is_public(str(IPv6Address(prefix | int(v4))))
    assert not is_public(str(IPv6Address((0x2002 << 112) | (int(v4) << 80))))


@pytest.mark.promise(20)
def test_the_socket_refuses_a_private_address_in_the_last_moment() -> None:
    with pytest.raises(AddressRefused):
        guarded_socket((2, 1, 6, "", ("10.1.2.3", 443)))
    assert not is_public("no address")


def test_a_receiver_can_check_the_signature() -> None:
    secret = endpoint_secret(b"pepper", ENDPOINT, 1)
    assert secret != endpoint_secret(b"pepper", ENDPOINT, 2) != endpoint_secret(b"other", ENDPOINT, 2)
    header = signature(secret, 1_700_000_000, b'{"a":1}')
    stamp, _, digest = header.partition(",v1=")
    expected = hmac.new(secret.encode(), stamp[2:].encode() + b'.{"a":1}', hashlib.sha256).hexdigest()
    assert digest == expected


def test_pauses_grow_and_end() -> None:
    pauses = [retry_delay_s(n) for n in range(1, MAX_ATTEMPTS)]
    assert pauses == sorted(pauses)
    assert pauses[:3] == [30, 120, 480]
    assert pauses[-1] == 6 * 3600


@given(st.integers(0, 10**24), st.integers(1, 10**24), st.lists(st.integers(1, 1000), max_size=6))
def test_thresholds_are_exact(spent: int, budget: int, marks: list[int]) -> None:
    found = reached_thresholds(spent, budget, marks)
    assert found == {mark for mark in marks if -(-budget * mark // 100) <= spent}


def test_smtp_addresses() -> None:
    assert parse_smtp("", "") is None
    plain = parse_smtp("smtp://u%40x:p%3Aw@mail.example.com", "billing@example.com")
    assert plain == SmtpServer("mail.example.com", 587, "billing@example.com", "u@x", "p:w", False)
    assert parse_smtp("smtps://mail.example.com", "a@b") == SmtpServer(
        "mail.example.com", 465, "a@b", tls=True
    )
    for url, sender in (
        ("http://x", "a@b"),
        ("smtp://", "a@b"),
        ("smtp://h:99999", "a@b"),
        ("smtp://u:secret@h", ""),
    ):
        with pytest.raises(InvalidRequest) as caught:
            parse_smtp(url, sender)
        assert "secret" not in caught.value.message


def test_a_mail_keeps_its_identity() -> None:
    smtp = SmtpServer("h", 25, "billing@example.com")
    message = compose(smtp, "a@example.com", "50 % of Ärger", "Body é\n", ENDPOINT)
    assert message["Message-ID"] == f"<{ENDPOINT}@example.com>"
    assert message.get_content() == "Body é\n"
    with pytest.raises(ValueError, match="linefeed"):
        compose(smtp, "a@example.com", "x\nBcc: all@example.com", "b", ENDPOINT)
