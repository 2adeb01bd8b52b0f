"""Prices from memory: shown while reads fail, for a while."""

import asyncio
from typing import Any

import pytest

from api.customer import prices
from api.customer.prices import PriceCache
from core.errors import Unavailable
from tests.support.clock import ManualClock
from tests.support.gateway_fakes import principal


class NoDatabase:
    """PostgreSQL is away."""

    def read(self) -> Any:
        raise OSError("connection refused")


async def test_prices_that_cannot_be_read_are_shown_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Working:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None: ...

    async def none(*_: object, **__: object) -> list[Any]:
        return []

    monkeypatch.setattr(prices, "list_prices", none)
    clock, who, database = ManualClock(), principal(), NoDatabase()
    cache = PriceCache(database, clock.monotonic, 60.0)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(NoDatabase, "read", lambda _: Working())
        assert await cache.of(who) == {}
    clock.advance(60.0)
    assert await cache.of(who) == {}
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "prices cannot be read" in caplog.text
    clock.advance(1.0)
    with pytest.raises(Unavailable, match="cannot be read"):
        await cache.of(who)
