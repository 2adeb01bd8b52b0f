"""E-mail by SMTP: a server given as a URL, one message per connection, TLS whenever a password is sent."""

import asyncio
from email.message import EmailMessage
from urllib.parse import unquote, urlsplit
from uuid import UUID

import aiosmtplib
import msgspec

from core.errors import InvalidRequest

TIMEOUT_S = 10.0
"""Seconds for one message."""
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class SmtpServer(msgspec.Struct, frozen=True):
    """An SMTP server and our sender address."""

    host: str
    port: int
    sender: str
    username: str | None = None
    password: str | None = None
    tls: bool = False
    """Implicit TLS (smtps://); otherwise STARTTLS when the server offers it."""


def parse_smtp(url: str, sender: str) -> SmtpServer | None:
    """The server of a URL such as `smtp://user:password@host:587` or `smtps://host:465`; None for an empty one.

    Raises InvalidRequest, without the password in its message, for an invalid URL or `sender`.
    """
    if not url:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname:
        raise InvalidRequest("PENSTOCK_SMTP_URL must look like smtp://user:password@mail.example.com:587")
    if "@" not in sender:
        raise InvalidRequest("PENSTOCK_SMTP_FROM must be the address that our mail comes from")
    tls = parts.scheme == "smtps"
    return SmtpServer(
        host=parts.hostname,
        port=port or (465 if tls else 587),
        sender=sender,
        username=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        tls=tls,
    )


def compose(smtp: SmtpServer, to: str, subject: str, body: str, message_id: UUID) -> EmailMessage:
    """A plain-text message; its Message-ID is derived from `message_id`, so that a mailbox recognises a repetition."""
    message = EmailMessage()
    message["From"] = smtp.sender
    message["To"] = to
    message["Subject"] = subject
    message["Message-ID"] = f"<{message_id}@{smtp.sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(body)
    return message


class _Connection(aiosmtplib.SMTP):
    """A connection that is closed at once, without waiting for the server to end TLS: QUIT has ended the conversation.

    asyncio would wait for it in the background, for up to 30 s, and keep the socket beyond the end of the event loop.
    """

    def close(self) -> None:
        """Close the connection; the socket is closed at the next turn of the event loop."""
        transport = self.transport
        if isinstance(transport, asyncio.WriteTransport) and not transport.is_closing():
            transport.abort()
        super().close()


async def send(smtp: SmtpServer, message: EmailMessage) -> str | None:
    """Send a message; returns None when the server accepted it, otherwise the error as a text.

    With a password, TLS is required, except for a server on this machine.
    """
    has_password = smtp.username is not None and smtp.host not in _LOOPBACK
    try:
        async with _Connection(
            hostname=smtp.host,
            port=smtp.port,
            username=smtp.username,
            password=smtp.password,
            use_tls=smtp.tls,
            start_tls=None if smtp.tls or not has_password else True,
            timeout=TIMEOUT_S,
        ) as connection:
            await connection.send_message(message)
    except (aiosmtplib.SMTPException, OSError, ValueError) as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None
