"""Prices from memory: shown while reads fail, for a while."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from api.customer import prices
from api.customer.prices import PriceBook
from billing.pricing.prices import PriceView
from core.errors import Unavailable
from core.ids import uuid7
from tests.support.clock import ManualClock

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


class FakeDatabase:
    """PostgreSQL, which may be away; counts the reads of all versions."""

    def __init__(self) -> None:
        self.away = False
        self.state = 1
        self.versions: list[PriceView] = []
        self.reads = 0

    def read(self) -> Any:
        return self

    async def __aenter__(self) -> "FakeDatabase":
        if self.away:
            raise OSError("connection refused")
        return self

    async def __aexit__(self, *_: object) -> None: ...


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> FakeDatabase:
    async def state(connection: FakeDatabase) -> object:
        return connection.state

    async def versions(connection: FakeDatabase) -> list[PriceView]:
        connection.reads += 1
        return connection.versions

    monkeypatch.setattr(prices, "price_state", state)
    monkeypatch.setattr(prices, "list_prices", versions)
    return FakeDatabase()


def version(
    tenant_id: UUID | None, output: str, starts_h: float = -1.0, ends_h: float | None = None
) -> PriceView:
    def at(hours: float) -> str:
        return (NOW + timedelta(hours=hours)).isoformat()

    return PriceView(
        1, "m", "standard", tenant_id, "1", "1", output, "1", at(starts_h), None if ends_h is None else at(ends_h),
        "a", "current", None, None,
    )  # fmt: skip


def book(database: FakeDatabase, clock: ManualClock) -> PriceBook:
    return PriceBook(database, 60.0, now=clock.monotonic, today=lambda: NOW)  # type: ignore[arg-type]


async def test_prices_that_cannot_be_read_are_shown_for_a_while_only(database: FakeDatabase) -> None:
    clock = ManualClock()
    made = book(database, clock)
    with pytest.raises(Unavailable, match="cannot be read"):
        made.of(None)
    database.versions = [version(None, "2")]
    await made.refresh()
    database.away = True
    clock.advance(60.0)
    with pytest.raises(OSError, match="refused"):
        await made.refresh()
    assert made.of(None)["m"]["standard"].output == "2"
    clock.advance(1.0)
    with pytest.raises(Unavailable, match="cannot be read"):
        made.of(None)


async def test_versions_are_read_again_when_one_has_changed(database: FakeDatabase) -> None:
    made = book(database, ManualClock())
    await made.refresh()
    await made.refresh()
    assert (database.reads, made.of(None)) == (1, {})
    database.state, database.versions = 2, [version(None, "2")]
    await made.refresh()
    assert (database.reads, made.of(None)["m"]["standard"].output) == (2, "2")


async def test_the_version_that_holds_now_and_the_organisations_own_is_shown(database: FakeDatabase) -> None:
    one, other = uuid7(), uuid7()
    database.versions = [
        version(None, "9", ends_h=0.0),
        version(None, "2", starts_h=0.0, ends_h=5.0),
        version(None, "8", starts_h=5.0),
        version(one, "1"),
        version(other, "7"),
    ]
    made = book(database, ManualClock())
    await made.refresh()
    assert made.of(None)["m"]["standard"].output == "2"
    assert made.of(one)["m"]["standard"].output == "1"
    assert made.of(uuid7())["m"]["standard"].output == "2"
