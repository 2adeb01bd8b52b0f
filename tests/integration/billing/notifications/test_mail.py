"""Mail through TLS: a real server that demands STARTTLS and a password, with a certificate that is trusted or not."""

import asyncio
import gc
import socket
import ssl
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from aiosmtpd.smtp import AuthResult, LoginPassword
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from billing.notifications.mail import SmtpServer, compose, send
from core.ids import uuid7
from tests.support.ports import listening
from tests.support.smtp import Mailbox, smtp_server


def certificate(folder: Path) -> Path:
    """A certificate of its own for 127.0.0.1, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mail of the tests")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "mail.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Mailbox, SmtpServer, Path]]:
    pem = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    mailbox = Mailbox()

    def check(*facts: Any) -> AuthResult:
        given = facts[-1]
        good = LoginPassword(b"penstock", b"pass:word")
        return AuthResult(success=given == good, handled=False)

    with smtp_server(
        mailbox, tls_context=context, require_starttls=True, auth_required=True, authenticator=check
    ) as port:
        yield mailbox, SmtpServer("127.0.0.1", port, "billing@penstock.example", "penstock", "pass:word"), pem


async def test_mail_goes_through_starttls_with_a_password(
    server: tuple[Mailbox, SmtpServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox, smtp, pem = server
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    message = compose(smtp, "a@example.com", "s", "b", uuid7())
    assert await send(smtp, message) is None
    assert [mail["Subject"] for mail in mailbox.mails] == ["s"]
    wrong = SmtpServer(smtp.host, smtp.port, smtp.sender, "penstock", "guess")
    assert "SMTPAuthenticationError" in str(await send(wrong, message))
    assert len(mailbox.mails) == 1


async def test_a_server_that_cannot_prove_itself_gets_nothing(
    server: tuple[Mailbox, SmtpServer, Path],
) -> None:
    mailbox, smtp, _ = server
    failure = await send(smtp, compose(smtp, "a@example.com", "s", "b", uuid7()))
    assert failure is not None
    assert "pass:word" not in failure
    assert mailbox.mails == []


def serve_once_and_fall_silent(listener: socket.socket, context: ssl.SSLContext, end: Event) -> None:
    """An SMTP server in a thread that answers one client's QUIT and then nothing, not even the end of TLS."""
    with listener, listener.accept()[0] as plain, context.wrap_socket(plain, server_side=True) as client:
        lines = client.makefile("rb")
        client.sendall(b"220 ready\r\n")
        for line in lines:
            client.sendall(b"354 go on\r\n" if line.startswith(b"DATA") else b"250 good\r\n")
            if line.startswith(b"DATA"):
                while next(lines) != b".\r\n":
                    pass
                client.sendall(b"250 taken\r\n")
            if line.startswith(b"QUIT"):
                break
        end.wait(60)
        lines.close()


def test_a_silent_server_keeps_no_connection_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    listener, end = listening(), Event()
    smtp = SmtpServer("127.0.0.1", listener.getsockname()[1], "billing@penstock.example", tls=True)
    with ThreadPoolExecutor(1) as pool, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        serving = pool.submit(serve_once_and_fall_silent, listener, context, end)
        try:
            assert asyncio.run(send(smtp, compose(smtp, "a@example.com", "s", "b", uuid7()))) is None
            gc.collect()
            assert [str(one.message) for one in warned if one.category is ResourceWarning] == []
        finally:
            end.set()
        serving.result()


async def test_a_password_does_not_travel_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote server without TLS (simulated by another name of this machine) does not get the password."""
    seen: list[bytes] = []

    class Listening(Mailbox):
        async def handle_AUTH(self, *facts: Any) -> str:
            seen.append(b"asked")
            return "235 OK"

    with smtp_server(Listening()) as port:
        monkeypatch.setattr("billing.notifications.mail._LOOPBACK", frozenset())
        smtp = SmtpServer("127.0.0.1", port, "x@y.example", "user", "secret")
        failure = await send(smtp, compose(smtp, "a@example.com", "s", "b", uuid7()))
    assert failure is not None
    assert "STARTTLS" in failure.upper()
    assert seen == []
