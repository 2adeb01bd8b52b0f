"""Price books: list prices and contract prices per model and tier, in versions with a validity period.

A version's amounts never change. A new price ends the version that is valid at its start, and ends itself where the
next scheduled version begins; an exclusion constraint refuses overlaps. A book has no gap until it is ended. Requests
pin a version at admission. Contract discounts add derived versions (contracts.py).
"""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.pricing.contracts import derive_prices, lock_price_books
from core.errors import Conflict, InvalidRequest, NotFound
from core.money import per_mtok_to_pico_per_token, pico_per_token_to_per_mtok
from tenants.scoping import platform_wide

TIERS = ("priority", "standard", "batch")
CURRENCY = "USD"
MAX_PICO_PER_TOKEN = 10**15
"""The highest price: a thousand dollars per token."""


class Rates(msgspec.Struct, frozen=True):
    """A price in decimal dollars per million tokens, as entered."""

    input: str
    cached_input: str
    output: str
    reasoning: str

    def to_pico(self) -> dict[str, int]:
        """Picodollars per token of each class. Raises InvalidRequest naming the invalid class."""
        return {name: _parse_rate(value, name) for name, value in msgspec.structs.asdict(self).items()}


class PriceView(msgspec.Struct, frozen=True):
    """One price version; amounts are decimal dollars per million tokens."""

    id: int
    model: str
    tier: str
    tenant_id: UUID | None
    """None = list price."""
    input: str
    cached_input: str
    output: str
    reasoning: str
    effective_from: str
    effective_to: str | None
    created_by: str
    status: str
    """ended | current | scheduled | withdrawn (before it began)"""
    contract_id: UUID | None
    """The contract from whose discount it is derived."""
    ended_by: str | None
    """The person who ended the book at `effective_to`; None when another version follows."""
    currency: str = CURRENCY


class Unpriced(msgspec.Struct, frozen=True):
    """A model and tier without a price, and the requests refused because of it."""

    model: str
    tier: str
    tenant_id: UUID | None
    """None: an offered model without a list price."""
    requests: int
    """Requests refused so far."""
    first_at: str | None
    last_at: str | None


def check_currency(currency: str) -> None:
    """Raise InvalidRequest unless `currency` is CURRENCY."""
    if currency != CURRENCY:
        raise InvalidRequest(
            f"the currency {currency[:20]!r} is not supported: prices and accounts are in {CURRENCY}, before tax",
            param="currency",
        )


async def was_priced(connection: AsyncConnection, model: str) -> bool:
    """Whether a list price of the model was in force or is scheduled, for any tier."""
    found = await connection.scalar(
        text(
            "SELECT EXISTS (SELECT 1 FROM price_versions WHERE model = :model "
            "AND tenant_id IS NULL AND withdrawn_at IS NULL)"
        ),
        {"model": model},
    )
    return bool(found)


async def set_price(
    connection: AsyncConnection,
    *,
    model: str,
    tier: str,
    tenant_id: UUID | None,
    rates: Rates,
    effective_from: datetime | None,
    created_by: str,
) -> PriceView:
    """Add a price valid from `effective_from` (None = now, by the database's clock) until the next scheduled version.

    `tenant_id` None sets the list price. Updates the prices derived from it. Raises InvalidRequest for a negative or
    inexact price, an unknown tier, or a start in the past; Conflict when a version of the book starts at that instant.
    """
    book = _book_key(model, tier, tenant_id)
    amounts = rates.to_pico()
    now = await lock_price_books(connection)
    start = _effective_instant(effective_from, now, "effective_from")
    try:
        row = await _insert_version(connection, book, start, amounts, created_by)
    except IntegrityError as error:
        raise Conflict(
            f"a price of {model} ({tier}) already starts at {start.isoformat()}", param="effective_from"
        ) from error
    await derive_prices(connection, now, tenant_id=tenant_id, model=model, tier=tier, by=created_by)
    return await get_version(connection, row.id)


async def end_price(
    connection: AsyncConnection,
    *,
    model: str,
    tier: str,
    tenant_id: UUID | None,
    at: datetime | None,
    ended_by: str,
) -> list[PriceView]:
    """End a price book at `at` (None = now): the version valid then ends, later ones are withdrawn.

    From then on the list or discounted price applies; without a list price requests are refused. Returns the changed
    versions. Raises InvalidRequest for an unknown tier or an instant in the past, NotFound when no version would end.
    """
    book = _book_key(model, tier, tenant_id)
    now = await lock_price_books(connection)
    end = _effective_instant(at, now, "at")
    changed = await connection.execute(
        text(
            "UPDATE price_versions SET ended_by = :by, "
            "effective = CASE WHEN lower(effective) < CAST(:end AS timestamptz) "
            "THEN tstzrange(lower(effective), CAST(:end AS timestamptz)) ELSE effective END, "
            "withdrawn_at = CASE WHEN lower(effective) >= CAST(:end AS timestamptz) THEN CAST(:now AS timestamptz) END "
            "WHERE book = :book AND contract_id IS NULL AND withdrawn_at IS NULL "
            "AND (upper(effective) IS NULL OR upper(effective) > CAST(:end AS timestamptz) "
            "OR (upper(effective) = CAST(:end AS timestamptz) AND ended_by IS NULL)) RETURNING id"
        ),
        {"by": ended_by, "end": end, "now": now, "book": book["book"]},
    )
    ids = sorted(changed.scalars())
    if not ids:
        raise NotFound(f"no price of {model} ({tier}) holds at {end.isoformat()} or later", param="model")
    await derive_prices(connection, now, tenant_id=tenant_id, model=model, tier=tier, by=ended_by)
    return [await get_version(connection, version) for version in ids]


async def withdraw_price(connection: AsyncConnection, version: int, *, withdrawn_by: str) -> PriceView:
    """Withdraw a scheduled price before it begins; the version before it is then valid until the next.

    Raises NotFound; Conflict when the version has begun, is derived from a contract, or is withdrawn already.
    """
    now = await lock_price_books(connection)
    price = await get_version(connection, version)
    if price.contract_id is not None:
        raise Conflict("this price follows from a contract: change the contract, or the list price")
    if price.status != "scheduled":
        raise Conflict(f"only a scheduled price can be withdrawn, and this one is {price.status}")
    parameters = {"id": version, "now": now, "by": withdrawn_by}
    await connection.execute(
        text(
            "UPDATE price_versions SET withdrawn_at = CAST(:now AS timestamptz), ended_by = :by WHERE id = :id"
        ),
        parameters,
    )
    await connection.execute(
        text(
            "UPDATE price_versions p SET effective = tstzrange(lower(p.effective), upper(w.effective)), "
            "ended_by = CASE WHEN upper(w.effective) IS NULL THEN NULL ELSE p.ended_by END "
            "FROM price_versions w WHERE w.id = :id AND p.book = w.book AND p.contract_id IS NULL "
            "AND p.withdrawn_at IS NULL AND upper(p.effective) = lower(w.effective) AND p.ended_by IS NULL"
        ),
        parameters,
    )
    await derive_prices(
        connection, now, tenant_id=price.tenant_id, model=price.model, tier=price.tier, by=withdrawn_by
    )
    return await get_version(connection, version)


def _book_key(model: str, tier: str, tenant_id: UUID | None) -> dict[str, object]:
    """The columns that identify a price book. Raises InvalidRequest for a bad model name or an unknown tier."""
    if not model or len(model) > 200:
        raise InvalidRequest("model must be a name of 1 to 200 characters", param="model")
    if tier not in TIERS:
        raise InvalidRequest(f"tier must be one of {', '.join(TIERS)}, not {tier[:40]!r}", param="tier")
    return {
        "model": model,
        "tier": tier,
        "tenant": tenant_id,
        "book": f"{model} {tier} {tenant_id or 'list'}",
    }


def _effective_instant(at: datetime | None, now: datetime, param: str) -> datetime:
    """`at`, or `now` for None. Raises InvalidRequest for an instant without a time zone or before `now`."""
    instant = at or now
    if instant.tzinfo is None:
        raise InvalidRequest(f"{param} needs a time zone, such as Z", param=param)
    if instant < now:
        raise InvalidRequest(
            f"{param} {instant.isoformat()} is past: what was admitted keeps its price", param=param
        )
    return instant


async def _insert_version(
    connection: AsyncConnection,
    book: dict[str, object],
    start: datetime,
    amounts: dict[str, int],
    created_by: str,
) -> Row[tuple[object, ...]]:
    """End the version that covers `start` and insert the new one up to the next start; withdraws later derived ones."""
    parameters = {"book": book["book"], "start": start}
    await connection.execute(
        text(
            "UPDATE price_versions SET ended_by = NULL, "
            "effective = tstzrange(lower(effective), CAST(:start AS timestamptz)) "
            "WHERE book = :book AND withdrawn_at IS NULL AND effective @> CAST(:start AS timestamptz) "
            "AND lower(effective) < CAST(:start AS timestamptz)"
        ),
        parameters,
    )
    await connection.execute(
        text(
            "UPDATE price_versions SET withdrawn_at = clock_timestamp() WHERE book = :book "
            "AND contract_id IS NOT NULL AND withdrawn_at IS NULL AND lower(effective) >= CAST(:start AS timestamptz)"
        ),
        parameters,
    )
    result = await connection.execute(
        text(
            "INSERT INTO price_versions (model, tier, tenant_id, input, cached_input, output, reasoning, "
            "effective, created_by) VALUES (:model, :tier, :tenant, :input, :cached_input, :output, :reasoning, "
            "tstzrange(CAST(:start AS timestamptz), (SELECT min(lower(effective)) FROM price_versions "
            "WHERE book = :book AND withdrawn_at IS NULL AND lower(effective) > CAST(:start AS timestamptz))), :by) "
            "RETURNING id"
        ),
        {**book, **amounts, "start": start, "by": created_by},
    )
    return result.one()


@platform_wide("only finance's changes look a version up by its id")
async def get_version(connection: AsyncConnection, version: int) -> PriceView:
    """One price version, whatever its status. Raises NotFound."""
    row = (
        await connection.execute(
            text("SELECT *, clock_timestamp() AS now FROM price_versions WHERE id = :id"), {"id": version}
        )
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no price version {version}")
    return _view(row)


async def list_prices(
    connection: AsyncConnection,
    *,
    model: str | None = None,
    tenant_id: UUID | None = None,
    history: bool = False,
) -> list[PriceView]:
    """Current and scheduled versions by model, tier, tenant and start; `history` includes ended and withdrawn ones.

    `model` (None = any) narrows the list; `tenant_id` narrows it to list prices and that tenant's own prices.
    """
    rows = await connection.execute(
        text(
            "SELECT *, clock_timestamp() AS now FROM price_versions "
            "WHERE (CAST(:model AS text) IS NULL OR model = :model) "
            "AND (CAST(:tenant AS uuid) IS NULL OR tenant_id IS NULL OR tenant_id = :tenant) "
            "AND (:history OR (withdrawn_at IS NULL "
            "AND (upper(effective) IS NULL OR upper(effective) > clock_timestamp()))) "
            "ORDER BY model, tier, tenant_id NULLS FIRST, lower(effective), id"
        ),
        {"model": model, "tenant": tenant_id, "history": history},
    )
    return [_view(row) for row in rows]


@platform_wide("a model that replaces another needs a price for all organisations")
async def books_without_price(
    connection: AsyncConnection, model: str, replacement: str, at: datetime | None
) -> list[tuple[str, UUID | None]]:
    """Tier and owner (None = list) of the books that price `model` now, and `replacement` not at `at` (None = now).

    Of a model without any price, the list of the tier standard has to price the replacement.
    """
    rows = await connection.execute(
        text(
            "WITH books AS (SELECT tier, tenant_id FROM price_versions WHERE model = :model "
            "AND withdrawn_at IS NULL AND effective @> clock_timestamp()) "
            "SELECT DISTINCT b.tier, b.tenant_id FROM (SELECT * FROM books UNION ALL "
            "SELECT 'standard', NULL WHERE NOT EXISTS (SELECT 1 FROM books)) b "
            "WHERE (penstock_price(:replacement, b.tier, b.tenant_id, "
            "greatest(CAST(:at AS timestamptz), clock_timestamp()))).id IS NULL ORDER BY 1, 2 NULLS FIRST"
        ),
        {"model": model, "replacement": replacement, "at": at},
    )
    return [(row.tier, row.tenant_id) for row in rows]


@platform_wide("whether any price has changed since it was read")
async def price_state(connection: AsyncConnection) -> tuple[int | None, ...]:
    """A value that differs whenever a version was added, ended or withdrawn."""
    row = (
        await connection.execute(
            text(
                "SELECT max(id), count(withdrawn_at), sum(hashtext(effective::text)::bigint)::bigint "
                "FROM price_versions"
            )
        )
    ).one()
    return tuple(row)


@platform_wide("the platform sets the missing prices of all organisations")
async def list_unpriced(connection: AsyncConnection, start: datetime, end: datetime) -> list[Unpriced]:
    """Models without a price now: those requested in [start, end), by tier and customer, and those that are offered.

    An entry disappears when its price is set or its model is retired.
    """
    rows = await connection.execute(
        text(
            "SELECT u.model, u.tier, u.tenant_id, u.requests, u.first_at, u.last_at FROM unpriced_refusals u "
            "JOIN models m ON m.name = u.model AND m.status <> 'retired' "
            "AND coalesce(m.retires_at > clock_timestamp(), true) "
            "WHERE u.first_at < :end AND u.last_at >= :start "
            "AND (penstock_price(u.model, u.tier, u.tenant_id, clock_timestamp())).id IS NULL "
            "UNION ALL "
            "SELECT m.name, 'standard', NULL, 0, NULL, NULL FROM models m "
            "WHERE m.status <> 'retired' AND coalesce(m.retires_at > clock_timestamp(), true) AND m.alias_of IS NULL "
            "AND (penstock_price(m.name, 'standard', NULL, clock_timestamp())).id IS NULL "
            "ORDER BY 1, 2, 3 NULLS FIRST"
        ),
        {"start": start, "end": end},
    )
    return [
        Unpriced(
            model=row.model,
            tier=row.tier,
            tenant_id=row.tenant_id,
            requests=row.requests,
            first_at=None if row.first_at is None else row.first_at.isoformat(),
            last_at=None if row.last_at is None else row.last_at.isoformat(),
        )
        for row in rows
    ]


def _parse_rate(value: str, name: str) -> int:
    try:
        rate = per_mtok_to_pico_per_token(value)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}", param=name) from None
    if rate > MAX_PICO_PER_TOKEN:
        raise InvalidRequest(f"{name}: {value} dollars per million tokens is out of range", param=name)
    return rate


def _view(row: Row[Any]) -> PriceView:
    begins, ends = row.effective.lower.astimezone(UTC), row.effective.upper
    if row.withdrawn_at is not None:
        status = "withdrawn"
    elif ends is not None and ends <= row.now:
        status = "ended"
    else:
        status = "current" if begins <= row.now else "scheduled"
    return PriceView(
        id=row.id,
        model=row.model,
        tier=row.tier,
        tenant_id=row.tenant_id,
        input=pico_per_token_to_per_mtok(row.input),
        cached_input=pico_per_token_to_per_mtok(row.cached_input),
        output=pico_per_token_to_per_mtok(row.output),
        reasoning=pico_per_token_to_per_mtok(row.reasoning),
        effective_from=begins.isoformat(),
        effective_to=None if ends is None else ends.astimezone(UTC).isoformat(),
        created_by=row.created_by,
        status=status,
        contract_id=row.contract_id,
        ended_by=row.ended_by,
    )
