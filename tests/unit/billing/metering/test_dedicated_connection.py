"""A dedicated connection whose transport closes."""

from typing import Any

import pytest

from billing.metering.dedicated_connection import ConnectionUnavailable, DedicatedConnection


class DyingConnection:
    """asyncpg's connection on uvloop in the instant in which its transport is closed."""

    terminated = False

    def is_closed(self) -> bool:
        return self.terminated

    def terminate(self) -> None:
        self.terminated = True

    async def fetch(self, *_: Any) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")


async def test_a_transport_that_has_just_closed_is_an_unavailable_connection() -> None:
    """The task that uses the connection reconnects and goes on."""
    dedicated = DedicatedConnection("postgresql://nowhere")
    connection = DyingConnection()
    dedicated._connection = connection  # type: ignore[assignment]
    with pytest.raises(ConnectionUnavailable):
        await dedicated.fetch("SELECT 1")
    assert connection.terminated
    assert not dedicated.connected
