"""Ports of `penstock up`."""

import socket
from dataclasses import replace

from cli.supervisor import RoleSpec
from core.child import free_port, kernel_ports
from core.errors import InvalidRequest


def choose_port(
    host: str, wanted: int | None, default: int, flag: str, *, avoid: set[int]
) -> tuple[int, str]:
    """(port to listen on, note for the user or ""): `wanted`, else `default`, else any free port with a note.

    `wanted` 0 means any free port. A note warns of a port that the kernel may give to a connection. A port of `avoid`
    counts as taken. Raises InvalidRequest when `wanted` is taken.
    """
    if wanted == 0:
        return free_port(host), ""
    port = default if wanted is None else wanted
    if port not in avoid and is_free(host, port):
        return port, _warning(port, flag)
    if wanted is not None:
        raise InvalidRequest(
            f"port {wanted} is taken; stop what listens there or give another {flag} (0 = any)"
        )
    chosen = free_port(host)
    return chosen, f"Port {port} is taken; using {chosen} ({flag} chooses another)."


def _warning(port: int, flag: str) -> str:
    taken = kernel_ports()
    if port not in taken:
        return ""
    return (
        f"Port {port} is one that the kernel gives to outgoing connections ({taken.start}-{taken.stop - 1}); "
        f"after a restart it may be taken. Use another {flag}."
    )


def is_free(host: str, port: int) -> bool:
    """Whether `port` has no listener. Connections in TIME_WAIT do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def serve_metrics_on(spec: RoleSpec, host: str, port: int) -> RoleSpec:
    """The spec of a process whose metrics and health are on `port`. It moves to a free one when that is taken later."""
    return replace(
        spec,
        env={**spec.env, "PENSTOCK_METRICS_PORT": str(port)},
        health_url=f"http://{host}:{port}/healthz",
        renew=lambda old: old if is_free(host, port) else serve_metrics_on(old, host, free_port(host)),
    )
