"""An SMTP server for the mail tests, which leaves no open connection behind."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MessageHandler
from aiosmtpd.smtp import SMTP

from tests.support.ports import listening

READY_S = 60.0
"""Seconds that the server may take to come up."""


class Mailbox(MessageHandler):
    """Keeps the messages that arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.mails: list[Message] = []

    def handle_message(self, message: Message) -> None:
        self.mails.append(message)


class _Server(Controller):
    """A controller on a socket that listens already. Its end waits until every connection is closed.

    The original stops its event loop while connections are being closed. Their sockets stay open until the garbage
    collector finds them, and its warnings fail whatever test runs then.
    """

    def __init__(self, mailbox: Mailbox, **options: Any) -> None:
        self._socket = listening()
        self._transports: list[asyncio.Transport] = []
        host, port = self._socket.getsockname()
        super().__init__(mailbox, hostname=host, port=port, ready_timeout=READY_S, **options)

    def factory(self) -> SMTP:
        """The protocol of a new connection, which keeps its transport (below TLS)."""
        transports = self._transports

        class Connection(SMTP):
            def connection_made(self, transport: asyncio.Transport) -> None:
                if transport.get_extra_info("sslcontext") is None:
                    transports.append(transport)
                super().connection_made(transport)

        return Connection(self.handler, **self.SMTP_kwargs)

    def _create_server(self) -> Any:
        return self.loop.create_server(self._factory_invoker, sock=self._socket)

    async def finish(self) -> None:
        """Stop listening, end the conversations and close the connections."""
        if self.server is not None:
            self.server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for transport in self._transports:
            transport.abort()
        await asyncio.sleep(0)  # an aborted transport closes its socket at the next turn of the loop


@contextmanager
def smtp_server(mailbox: Mailbox, **options: Any) -> Iterator[int]:
    """Run a server for `mailbox` on 127.0.0.1, with options of aiosmtpd's SMTP class; gives its port."""
    server = _Server(mailbox, **options)
    server.start()
    try:
        yield server.port
    finally:
        asyncio.run_coroutine_threadsafe(server.finish(), server.loop).result(READY_S)
        server.stop()
