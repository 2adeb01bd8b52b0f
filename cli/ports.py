"""Ports of `penstock up`: the one asked for or an error, the default one or a free one."""

import socket

from core.child import free_port
from core.errors import InvalidRequest


def choose_port(
    host: str, wanted: int | None, default: int, flag: str, *, avoid: set[int]
) -> tuple[int, str]:
    """A port to listen on, and a sentence about it when it is not the expected one. `wanted` 0 = any free one.

    Raises InvalidRequest when `wanted` was named and is taken.
    """
    if wanted == 0:
        return free_port(host), ""
    port = default if wanted is None else wanted
    if port not in avoid and is_free(host, port):
        return port, ""
    if wanted is not None:
        raise InvalidRequest(
            f"port {wanted} is taken; stop what listens there or give another {flag} (0 = any)"
        )
    chosen = free_port(host)
    return chosen, f"Port {port} is taken; using {chosen} ({flag} chooses another)."


def is_free(host: str, port: int) -> bool:
    """Whether nobody listens on `port`; connections that linger after a close do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
