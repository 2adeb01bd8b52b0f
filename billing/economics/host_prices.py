"""Hourly prices of host kinds: dated rows, entered by people. No change may alter the cost of a closed month."""

from datetime import datetime

import msgspec
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import Conflict, InvalidRequest
from core.money import pico_to_usd, usd_to_pico
from workers.catalog import load_catalog

MAX_SOURCE = 500
"""Characters of a price's source at most."""
MAX_USD_PER_HOUR = 100_000


class HostPriceView(msgspec.Struct, frozen=True):
    """A price of a host kind and the instant from which it is in force."""

    host_kind: str
    usd_per_hour: str
    effective_from: datetime
    source: str
    in_force: bool
    """Whether it is the price in force now."""


_LIST = text(
    """
    SELECT host_kind, usd_pico_per_hour, effective_from, source, effective_from = (
            SELECT max(p.effective_from) FROM host_prices p
            WHERE p.host_kind = h.host_kind AND p.effective_from <= clock_timestamp()) AS in_force
    FROM host_prices h WHERE CAST(:kind AS text) IS NULL OR host_kind = :kind ORDER BY host_kind, effective_from
    """
)
_SET = text(
    """
    INSERT INTO host_prices (host_kind, usd_pico_per_hour, effective_from, source)
    VALUES (:kind, :price, coalesce(:start, date_trunc('hour', clock_timestamp(), 'UTC')), :source)
    ON CONFLICT (host_kind, effective_from) DO UPDATE SET usd_pico_per_hour = excluded.usd_pico_per_hour,
        source = excluded.source
    RETURNING effective_from
    """
)


async def list_host_prices(connection: AsyncConnection, host_kind: str | None = None) -> list[HostPriceView]:
    """Past, present and scheduled prices by kind and date; `host_kind` None = of all kinds."""
    return [
        HostPriceView(
            host_kind=row.host_kind,
            usd_per_hour=pico_to_usd(int(row.usd_pico_per_hour)),
            effective_from=row.effective_from,
            source=row.source,
            in_force=bool(row.in_force),
        )
        for row in await connection.execute(_LIST, {"kind": host_kind})
    ]


async def set_host_price(
    connection: AsyncConnection,
    *,
    host_kind: str,
    usd_per_hour: str,
    source: str,
    effective_from: datetime | None = None,
) -> HostPriceView:
    """Set the price of `host_kind` from `effective_from` on, until the next dated price.

    `usd_per_hour` is a decimal from 0 to MAX_USD_PER_HOUR, `source` 1 to MAX_SOURCE characters, `effective_from` a
    whole UTC hour (None = the present hour). The same instant again replaces that row. Raises InvalidRequest for an
    argument out of these bounds or an unknown kind, Conflict when the cost of a closed month would change.
    """
    await check_kind(connection, host_kind, param="host_kind")
    price = parse_price(usd_per_hour)
    source = " ".join(source.split())
    if not 1 <= len(source) <= MAX_SOURCE:
        raise InvalidRequest(f"say where the price is from, in 1 to {MAX_SOURCE} characters", param="source")
    if effective_from is not None and (
        effective_from.tzinfo is None
        or (effective_from.minute, effective_from.second, effective_from.microsecond) != (0, 0, 0)
    ):
        raise InvalidRequest(
            f"a price holds from a whole UTC hour on, not from {effective_from.isoformat()}",
            param="effective_from",
        )
    bound = {"kind": host_kind, "price": price, "start": effective_from, "source": source}
    try:
        started = (await connection.execute(_SET, bound)).scalar_one()
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != "PS001":
            raise
        raise Conflict(
            f"a price of {host_kind} from that hour would change what a closed month cost: date it later",
            code="period_closed",
        ) from error
    prices = await list_host_prices(connection, host_kind)
    return next(view for view in prices if view.effective_from == started)


def parse_price(usd_per_hour: str) -> int:
    """Picodollars per hour. Raises InvalidRequest unless it is a decimal from 0 to MAX_USD_PER_HOUR."""
    try:
        price = usd_to_pico(usd_per_hour)
    except ValueError as error:
        raise InvalidRequest(str(error), param="usd_per_hour") from None
    if not 0 <= price <= usd_to_pico(str(MAX_USD_PER_HOUR)):
        raise InvalidRequest(
            f"a host costs 0 to {MAX_USD_PER_HOUR:,} dollars an hour, not {usd_per_hour}",
            param="usd_per_hour",
        )
    return price


async def check_kind(connection: AsyncConnection, host_kind: str, *, param: str) -> None:
    """Raise InvalidRequest, of `param`, unless the catalog or a registered host has this kind."""
    seen = await connection.scalars(text("SELECT DISTINCT host_kind FROM hosts"))
    known = sorted({*load_catalog().hosts, *seen})
    if host_kind not in known:
        raise InvalidRequest(
            f"there is no kind of host {host_kind[:80]!r}; there are: {', '.join(known)}", param=param
        )
