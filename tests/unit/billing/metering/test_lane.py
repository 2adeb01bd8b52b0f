"""The lane's view of a dying connection."""

from typing import Any

import pytest

from billing.metering.lane import Lane, LaneDown


class DyingConnection:
    """asyncpg's connection on uvloop in the instant in which its transport is closed."""

    terminated = False

    def is_closed(self) -> bool:
        return self.terminated

    def terminate(self) -> None:
        self.terminated = True

    async def fetch(self, *_: Any) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")


async def test_a_transport_that_has_just_closed_is_a_lane_that_is_down() -> None:
    """Whoever serves from the lane must go on with a new connection, not end."""
    lane = Lane("postgresql://nowhere")
    connection = DyingConnection()
    lane._connection = connection  # type: ignore[assignment]
    with pytest.raises(LaneDown):
        await lane.fetch("SELECT 1")
    assert connection.terminated
    assert not lane.connected
