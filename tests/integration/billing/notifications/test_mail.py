"""Mail through TLS: a real server that demands STARTTLS and a password, with a certificate that is trusted or not."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.message import Message
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MessageHandler
from aiosmtpd.smtp import AuthResult, LoginPassword
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from billing.notifications.mail import SmtpServer, compose, send
from core.ids import uuid7
from tests.support.ports import free_port


class Mailbox(MessageHandler):
    """Keeps the messages that arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.mails: list[Message] = []

    def handle_message(self, message: Message) -> None:
        self.mails.append(message)


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
    mailbox, port = Mailbox(), free_port()

    def check(*facts: Any) -> AuthResult:
        given = facts[-1]
        good = LoginPassword(b"penstock", b"pass:word")
        return AuthResult(success=given == good, handled=False)

    controller = Controller(
        mailbox,
        hostname="127.0.0.1",
        port=port,
        tls_context=context,
        require_starttls=True,
        auth_required=True,
        authenticator=check,
    )
    controller.start()
    yield mailbox, SmtpServer("127.0.0.1", port, "billing@penstock.example", "penstock", "pass:word"), pem
    controller.stop()


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


async def test_a_password_does_not_travel_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote server without TLS (simulated by another name of this machine) does not get the password."""
    seen: list[bytes] = []

    class Listening(Mailbox):
        async def handle_AUTH(self, *facts: Any) -> str:
            seen.append(b"asked")
            return "235 OK"

    port = free_port()
    controller = Controller(Listening(), hostname="127.0.0.1", port=port)
    controller.start()
    try:
        monkeypatch.setattr("billing.notifications.mail._LOOPBACK", frozenset())
        smtp = SmtpServer("127.0.0.1", port, "x@y.example", "user", "secret")
        failure = await send(smtp, compose(smtp, "a@example.com", "s", "b", uuid7()))
    finally:
        controller.stop()
    assert failure is not None
    assert "STARTTLS" in failure.upper()
    assert seen == []
