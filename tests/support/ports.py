"""Free TCP ports, and listening sockets, for servers that a test starts."""

import socket

from core.child import free_port

__all__ = ["free_port", "listening"]


def listening() -> socket.socket:
    """A socket that listens on a free port of 127.0.0.1 and sends what is written at once.

    asyncio sets TCP_NODELAY on the sockets that it makes. On one that is handed to it an answer's body would wait 40 ms
    for the acknowledgement of its head.
    """
    made = socket.create_server(("127.0.0.1", 0))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
