"""Price books: list prices and contract prices per model and tier, each with the time it holds.

A version's amounts never change. A new price closes the version that is open at its start and ends where the next
scheduled one begins; the database refuses overlaps (an exclusion constraint). Requests pin a version at admission.
"""

from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import Conflict, InvalidRequest
from core.money import per_mtok_to_pico_per_token, pico_per_token_to_per_mtok

TIERS = ("priority", "standard", "batch")
MAX_PICO_PER_TOKEN = 10**15
"""A thousand dollars a token; above it lies a typing error."""


class Rates(msgspec.Struct, frozen=True):
    """A price in decimal dollars per million tokens, as people write it."""

    input: str
    cached_input: str
    output: str
    reasoning: str

    def pico(self) -> dict[str, int]:
        """Picodollars per token of each class. Raises InvalidRequest naming the class that is wrong."""
        return {name: _rate(value, name) for name, value in msgspec.structs.asdict(self).items()}


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
    """Let a price hold from `effective_from` (None = now, by the database's clock) until the next scheduled one.

    Raises InvalidRequest for a negative or inexact price, an unknown tier, a start in the past; Conflict when a
    version of the same book starts at that very instant.
    """
    if not model or len(model) > 200:
        raise InvalidRequest("model must be a name of 1 to 200 characters", param="model")
    if tier not in TIERS:
        raise InvalidRequest(f"tier must be one of {', '.join(TIERS)}, not {tier[:40]!r}", param="tier")
    book: dict[str, object] = {"model": model, "tier": tier, "tenant": tenant_id}
    book["book"] = f"{model} {tier} {tenant_id or 'list'}"
    amounts = rates.pico()
    await connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:book))"), {"book": book["book"]})
    now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    start = effective_from or now
    if start.tzinfo is None:
        raise InvalidRequest("effective_from needs a time zone, such as Z", param="effective_from")
    if start < now:
        raise InvalidRequest(
            f"effective_from {start.isoformat()} is past: what was admitted keeps its price",
            param="effective_from",
        )
    try:
        row = await _insert_version(connection, book, start, amounts, created_by)
    except IntegrityError as error:
        raise Conflict(
            f"a price of {model} ({tier}) already starts at {start.isoformat()}", param="effective_from"
        ) from error
    return _view(row)


async def _insert_version(
    connection: AsyncConnection,
    book: dict[str, object],
    start: datetime,
    amounts: dict[str, int],
    created_by: str,
) -> Row[tuple[object, ...]]:
    """Close the version that covers `start` and insert the new one up to the next start."""
    await connection.execute(
        text(
            "UPDATE price_versions SET effective = tstzrange(lower(effective), CAST(:start AS timestamptz)) "
            "WHERE book = :book AND effective @> CAST(:start AS timestamptz) "
            "AND lower(effective) < CAST(:start AS timestamptz)"
        ),
        {"book": book["book"], "start": start},
    )
    result = await connection.execute(
        text(
            "INSERT INTO price_versions (model, tier, tenant_id, input, cached_input, output, reasoning, "
            "effective, created_by) VALUES (:model, :tier, :tenant, :input, :cached_input, :output, :reasoning, "
            "tstzrange(CAST(:start AS timestamptz), (SELECT min(lower(effective)) FROM price_versions "
            "WHERE book = :book AND lower(effective) > CAST(:start AS timestamptz))), :by) RETURNING *"
        ),
        {**book, **amounts, "start": start, "by": created_by},
    )
    return result.one()


async def list_prices(
    connection: AsyncConnection,
    *,
    model: str | None = None,
    tenant_id: UUID | None = None,
    history: bool = False,
) -> list[PriceView]:
    """Current and scheduled versions by model, tier, tenant and start; `history` adds the ended ones.

    `tenant_id` narrows to the list prices and that tenant's contract prices.
    """
    rows = await connection.execute(
        text(
            "SELECT * FROM price_versions WHERE (CAST(:model AS text) IS NULL OR model = :model) "
            "AND (CAST(:tenant AS uuid) IS NULL OR tenant_id IS NULL OR tenant_id = :tenant) "
            "AND (:history OR upper(effective) IS NULL OR upper(effective) > clock_timestamp()) "
            "ORDER BY model, tier, tenant_id NULLS FIRST, lower(effective)"
        ),
        {"model": model, "tenant": tenant_id, "history": history},
    )
    return [_view(row) for row in rows]


def _rate(value: str, name: str) -> int:
    try:
        rate = per_mtok_to_pico_per_token(value)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}", param=name) from None
    if rate > MAX_PICO_PER_TOKEN:
        raise InvalidRequest(f"{name}: {value} dollars per million tokens is out of range", param=name)
    return rate


def _view(row: Row[tuple[object, ...]]) -> PriceView:
    effective = row.effective
    return PriceView(
        id=row.id,
        model=row.model,
        tier=row.tier,
        tenant_id=row.tenant_id,
        input=pico_per_token_to_per_mtok(row.input),
        cached_input=pico_per_token_to_per_mtok(row.cached_input),
        output=pico_per_token_to_per_mtok(row.output),
        reasoning=pico_per_token_to_per_mtok(row.reasoning),
        effective_from=effective.lower.isoformat(),
        effective_to=None if effective.upper is None else effective.upper.isoformat(),
        created_by=row.created_by,
    )
