"""Contracts: discount, committed monthly spend, payment terms and service level of a customer, with a validity period.

For every list version that is valid during the contract, the discount yields a derived version for the customer
(`price_versions.contract_id`), rounded half up to the picodollar per token. A price set for the customer takes
precedence. Derived versions are renewed whenever a list price, a customer's own price or a contract is set or ended.
"""

from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger.months import month_of
from billing.pricing.proration import Span, prorate
from billing.pricing.sla_terms import Sla, parse_sla
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from core.money import MAX_PICO, pico_to_usd
from tenants.scoping import platform_wide

DEFAULT_PAYMENT_DAYS = 30
"""Days from an invoice to its due date without a contract."""

_LOCK = "SELECT pg_advisory_xact_lock(hashtext('penstock_prices'))"
"""Serializes changes of price books, because a list price changes the books of many customers."""


class Contract(msgspec.Struct, frozen=True):
    """The terms of one customer in a validity period."""

    id: UUID
    tenant_id: UUID
    effective_from: datetime
    effective_to: datetime | None
    discount_bps: int
    """Basis points off the list price: 1500 = 15 %."""
    commit_monthly: int | None
    """Committed spend per month in picodollars; None = none."""
    payment_days: int
    """Days from an invoice to its due date."""
    automatic_payment: bool
    """Whether Stripe charges the saved card for invoices; otherwise it mails them with their due date."""
    sla: dict[str, Any] | None
    """Service level (billing/pricing/sla_terms.py); None = none."""
    reason: str
    created_by: str
    ended_by: str | None
    withdrawn: bool = False
    """Whether it was ended before it began."""

    @property
    def commit_monthly_usd(self) -> str | None:
        """The committed spend in exact decimal dollars."""
        return None if self.commit_monthly is None else pico_to_usd(self.commit_monthly)


def due_at_end(contract: Contract) -> tuple[date, int] | None:
    """The month inside which `contract` ends, and the picodollars of its committed spend that remain due for it.

    None without a committed spend, without an end, for an end between two months, and for a withdrawn contract.
    """
    if contract.commit_monthly is None or contract.effective_to is None or contract.withdrawn:
        return None
    month = month_of(contract.effective_to)
    due = prorate([Span(contract.commit_monthly, contract.effective_from, contract.effective_to)], month)
    return (month, due) if due else None


@platform_wide("finance lists the contracts of all organisations")
async def list_contracts(connection: AsyncConnection, tenant_id: UUID | None = None) -> list[Contract]:
    """Contracts of one tenant or all, past and future, by tenant and start, without withdrawn ones."""
    rows = await connection.execute(
        text(
            "SELECT * FROM contracts WHERE withdrawn_at IS NULL "
            "AND (CAST(:tenant_id AS uuid) IS NULL OR tenant_id = :tenant_id) "
            "ORDER BY tenant_id, lower(effective)"
        ),
        {"tenant_id": tenant_id},
    )
    return [_view(row) for row in rows]


async def add_contract(
    connection: AsyncConnection,
    *,
    tenant_id: UUID,
    effective_from: datetime | None,
    effective_to: datetime | None,
    discount_bps: int,
    commit_monthly: int | None,
    payment_days: int,
    automatic_payment: bool = False,
    sla: dict[str, Any] | None,
    reason: str,
    created_by: str,
) -> Contract:
    """Add a contract valid in [effective_from (None = now), effective_to (None = open)), and derive its prices.

    `discount_bps` is 0 to 10,000 basis points, `commit_monthly` picodollars, `payment_days` 0 to 365, `sla` a rule of
    sla_terms.py. Raises InvalidRequest for values out of range or a start in the past, Conflict when the tenant has
    another contract in this period.
    """
    sla_rule = _validate(discount_bps, commit_monthly, payment_days, sla)
    now = await lock_price_books(connection)
    start = effective_from or now
    if start.tzinfo is None or (effective_to is not None and effective_to.tzinfo is None):
        raise InvalidRequest("effective_from and effective_to need a time zone, such as Z")
    if start < now:
        raise InvalidRequest(
            f"effective_from {start.isoformat()} is past: what was used keeps its price; correct it by a re-rating",
            param="effective_from",
        )
    if effective_to is not None and effective_to <= start:
        raise InvalidRequest("effective_to must be later than effective_from", param="effective_to")
    try:
        inserted = await connection.execute(
            text(
                "INSERT INTO contracts (id, tenant_id, effective, discount_bps, commit_monthly, payment_days, "
                "automatic_payment, sla, reason, created_by) VALUES (:id, :tenant_id, "
                "tstzrange(CAST(:start AS timestamptz), CAST(:end AS timestamptz)), :bps, "
                "CAST(:commit AS numeric), :days, :automatic, CAST(:sla AS jsonb), :reason, :by) RETURNING *"
            ),
            {
                "id": uuid7(),
                "tenant_id": tenant_id,
                "start": start,
                "end": effective_to,
                "bps": discount_bps,
                "commit": commit_monthly,
                "days": payment_days,
                "automatic": automatic_payment,
                "sla": None if sla_rule is None else msgspec.json.encode(sla_rule).decode(),
                "reason": reason,
                "by": created_by,
            },
        )
    except IntegrityError as error:
        raise Conflict(
            "the organisation has another contract in this time; end that one first", param="effective_from"
        ) from error
    contract = _view(inserted.one())
    await derive_prices(connection, now, tenant_id=tenant_id, by=created_by)
    return contract


async def end_contract(
    connection: AsyncConnection, contract_id: UUID, *, at: datetime | None, by: str
) -> Contract:
    """End a contract and its derived prices at `at` (None = now); withdraw it when it would not have begun by then.

    Raises NotFound, InvalidRequest for an instant in the past, Conflict when the contract ends by then already.
    """
    now = await lock_price_books(connection)
    end = at or now
    if end.tzinfo is None:
        raise InvalidRequest("the end needs a time zone, such as Z", param="at")
    if end < now:
        raise InvalidRequest(f"{end.isoformat()} is past: what was used keeps its price", param="at")
    before = await get_contract(connection, contract_id)
    if before.effective_to is not None and before.effective_to <= end:
        raise Conflict(f"the contract ends at {before.effective_to.isoformat()} already")
    withdrawn = end <= before.effective_from
    await connection.execute(
        text(
            "UPDATE contracts SET withdrawn_at = CAST(:now AS timestamptz), ended_by = :by WHERE id = :id "
            "AND tenant_id = :tenant_id"
            if withdrawn
            else "UPDATE contracts SET effective = tstzrange(lower(effective), CAST(:end AS timestamptz)), "
            "ended_by = :by WHERE id = :id AND tenant_id = :tenant_id"
        ),
        {"id": contract_id, "tenant_id": before.tenant_id, "by": by}
        | ({"now": now} if withdrawn else {"end": end}),
    )
    await derive_prices(connection, now, tenant_id=before.tenant_id, by=by)
    return await get_contract(connection, contract_id)


@platform_wide("a contract is found by its id")
async def get_contract(connection: AsyncConnection, contract_id: UUID) -> Contract:
    """One contract, also a withdrawn one. Raises NotFound."""
    row = (
        await connection.execute(text("SELECT * FROM contracts WHERE id = :id"), {"id": contract_id})
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no contract with the id {contract_id}")
    return _view(row)


async def lock_price_books(connection: AsyncConnection) -> datetime:
    """Lock all price books until the end of the transaction; returns the database's time once locked."""
    await connection.execute(text(_LOCK))
    now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    return now


async def derive_prices(
    connection: AsyncConnection,
    now: datetime,
    *,
    tenant_id: UUID | None = None,
    model: str | None = None,
    tier: str | None = None,
    by: str,
) -> int:
    """Renew the derived prices from `now` on, of one tenant, model and tier (None = all).

    The caller has locked the books (`lock_price_books`). Returns the number of new versions.
    """
    made = await connection.execute(
        text(
            "SELECT penstock_derive_prices(CAST(:tenant_id AS uuid), :model, :tier, CAST(:now AS timestamptz), :by)"
        ),
        {"tenant_id": tenant_id, "model": model, "tier": tier, "now": now, "by": by},
    )
    return int(made.scalar_one())


def _validate(
    discount_bps: int, commit_monthly: int | None, payment_days: int, sla: dict[str, Any] | None
) -> Sla | None:
    if not 0 <= discount_bps <= 10_000:
        raise InvalidRequest(f"discount_bps must be 0 to 10000, not {discount_bps}", param="discount_bps")
    if commit_monthly is not None and not 0 < commit_monthly <= MAX_PICO:
        raise InvalidRequest("the committed spend must be above 0", param="commit_monthly_usd")
    if not 0 <= payment_days <= 365:
        raise InvalidRequest(f"payment_days must be 0 to 365, not {payment_days}", param="payment_days")
    return None if sla is None else parse_sla(sla)


def _view(row: Row[Any]) -> Contract:
    upper = row.effective.upper
    return Contract(
        id=row.id,
        tenant_id=row.tenant_id,
        effective_from=row.effective.lower.astimezone(UTC),
        effective_to=None if upper is None else upper.astimezone(UTC),
        discount_bps=row.discount_bps,
        commit_monthly=None if row.commit_monthly is None else int(row.commit_monthly),
        payment_days=row.payment_days,
        automatic_payment=row.automatic_payment,
        sla=row.sla,
        reason=row.reason,
        created_by=row.created_by,
        ended_by=row.ended_by,
        withdrawn=row.withdrawn_at is not None,
    )
