"""Corrections: a month re-rated under other prices, approved by a second person, booked in the present.

A dry run computes the difference by tenant and line, a request stores it, and an approval by another person lets
billing/invoicing/correction_booking.py book it. A reversal is a correction that undoes an earlier one, at most once.
Bookings, invoices and reports that exist are never rewritten. Every `month` argument is the first day of the month.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.commitments import billed, invoiced
from billing.invoicing.correction_lines import read_lines
from billing.invoicing.correction_views import (
    Correction,
    TenantDelta,
    by_tenant,
    correction_row,
    get_correction,
)
from billing.invoicing.lines import Commitment
from billing.invoicing.repricing import new_prices
from billing.invoicing.rerate import (
    CorrectionSpec,
    Difference,
    DifferenceView,
    LineKey,
    commit_differences,
    difference_view,
    rerate,
    reversed_lines,
)
from billing.invoicing.sources import usage_groups
from billing.ledger import approvals
from billing.ledger.approvals import Person
from billing.ledger.months import bounds, month_name
from core.errors import Conflict, InvalidRequest
from core.ids import uuid7
from core.money import pico_to_usd
from tenants.scoping import platform_wide

APPROVAL_KIND = "correction"


class DryRun(msgspec.Struct, frozen=True):
    """The difference that a correction would make; nothing is stored."""

    month: str
    until: str
    """Usage that ended before this instant is re-rated: the end of the month, or of the last full hour."""
    delta_usd: str
    tenants: tuple[TenantDelta, ...]
    lines: tuple[DifferenceView, ...]


class ApprovedCorrection(msgspec.Struct, frozen=True):
    """An approved correction, as booking needs it."""

    id: UUID
    month: date
    reason: str
    requested_by: str
    approved_by: str
    refund: bool = False


async def dry_run(connection: AsyncConnection, month: date, spec: CorrectionSpec) -> DryRun:
    """The difference that `spec` would make in `month`.

    Raises InvalidRequest for a month without a full hour of usage or an instant without a price, Conflict while hours
    of the month are not rolled up.
    """
    until = await _usage_end(connection, month)
    lines = await _differences(connection, month, until, spec)
    return DryRun(
        month=month_name(month),
        until=until.isoformat(),
        delta_usd=pico_to_usd(sum(line.delta for line in lines)),
        tenants=by_tenant(lines),
        lines=tuple(map(difference_view, lines)),
    )


@platform_wide("a correction may reach every organisation")
async def request_correction(
    connection: AsyncConnection, month: date, spec: CorrectionSpec, *, reason: str, by: Person
) -> Correction:
    """Store the difference that `spec` makes and request an approval. `by` names the person.

    Raises as `dry_run`, and InvalidRequest when nothing changes.
    """
    until = await _usage_end(connection, month)
    lines = await _differences(connection, month, until, spec)
    if not lines:
        raise InvalidRequest(
            f"no usage of {month_name(month)} changes its price by this: look at model, tier and tenant, "
            "or try `penstock corrections dry-run`",
            param="spec",
        )
    stored = msgspec.to_builtins(spec)
    return await _store(connection, month, until, lines, spec=stored, reason=reason, by=by, reverses=None)


async def request_reversal(
    connection: AsyncConnection, correction_id: UUID, *, reason: str, by: Person
) -> Correction:
    """Store the reversal of a correction and request an approval.

    Raises NotFound; Conflict when the correction is not approved and booked, is a reversal, or is reversed already.
    """
    await _lock(connection)
    original = await get_correction(connection, correction_id)
    if original.status != "approved":
        raise Conflict(f"the correction is {original.status}: only an approved one can be reversed")
    if original.reverses is not None:
        raise Conflict("a reversal cannot be reversed: request the correction again")
    if original.reversed_by is not None:
        raise Conflict(f"it is reversed already, by {original.reversed_by}")
    row = await correction_row(connection, correction_id)
    lines = await _reversal(connection, row.month, correction_id)
    return await _store(
        connection,
        row.month,
        row.until,
        lines,
        spec=original.spec,
        reason=reason,
        by=by,
        reverses=correction_id,
    )


async def decide_correction(
    connection: AsyncConnection, correction_id: UUID, *, by: Person, approve: bool
) -> Correction:
    """Approve or reject a correction. `correction_booking.apply_correction` books an approved one.

    Raises NotFound; Conflict when it is decided already, `by` requested it, or its figures changed since the request.
    """
    await _lock(connection)
    row = await correction_row(connection, correction_id)
    if row.status != "requested":
        if row.status == "expired":
            raise Conflict("the correction waited too long and has expired: request it again")
        decision = "rejected" if row.status == "rejected" else "approved"
        raise Conflict(f"the correction was {decision} by {row.decided_by} already")
    await approvals.decide(connection, row.approval_id, by=by, approve=approve)
    if approve:
        lines = await read_lines(connection, correction_id)
        spec = msgspec.convert(row.spec, CorrectionSpec)
        if row.reverses is None:
            now = await _differences(connection, row.month, row.until, spec)
        else:
            now = await _reversal(connection, row.month, row.reverses)
        if lines != now:
            raise Conflict(
                "usage or earlier corrections have changed these figures since the request: reject it and ask again"
            )
    await connection.execute(
        text(
            "UPDATE corrections SET status = :status, decided_by = :by, decided_at = clock_timestamp() WHERE id = :id"
        ),
        {"status": "applying" if approve else "rejected", "by": by.label, "id": correction_id},
    )
    return await get_correction(connection, correction_id)


@platform_wide("a correction may reach every organisation")
async def expire_correction(connection: AsyncConnection, correction_id: UUID, *, by: Person) -> None:
    """Note that the request of a correction has expired; `by` is the platform."""
    await connection.execute(
        text(
            "UPDATE corrections SET status = 'expired', decided_by = :by, decided_at = clock_timestamp() "
            "WHERE id = :id AND status = 'requested'"
        ),
        {"by": by.label, "id": correction_id},
    )


async def _lock(connection: AsyncConnection) -> None:
    """Exclude other corrections and invoice runs: both decide what is on which invoice."""
    await connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('penstock_invoices'))"))


async def _usage_end(connection: AsyncConnection, month: date) -> datetime:
    """The end of the usage that can be re-rated now. Raises InvalidRequest, Conflict as `dry_run`."""
    start, end = bounds(month)
    row = (
        await connection.execute(
            text(
                "SELECT least(CAST(:end AS timestamptz), date_trunc('hour', clock_timestamp(), 'UTC')) AS until, "
                "(SELECT count(*) FROM dirty_hours WHERE hour >= :start AND hour < least(CAST(:end AS timestamptz), "
                "date_trunc('hour', clock_timestamp(), 'UTC'))) AS marks"
            ),
            {"start": start, "end": end},
        )
    ).one()
    until: datetime = row.until
    if until <= start:
        raise InvalidRequest(f"{month_name(month)} has no full hour of usage yet", param="month")
    if row.marks:
        raise Conflict(
            f"hours of {month_name(month)} are not rolled up yet; try again in a minute", param="month"
        )
    return until


async def _differences(
    connection: AsyncConnection, month: date, until: datetime, spec: CorrectionSpec
) -> list[Difference]:
    """The lines that `spec` changes, from the usage of the organisations and models that it concerns."""
    tenants = spec.concerned_tenants()
    groups = await usage_groups(connection, month, until, tenants=tenants, models=spec.concerned_models())
    prices = await new_prices(connection, spec, groups)
    prior = await _prior_deltas(connection, month, {group.tenant_id for group in groups})
    lines = rerate(groups, prior, prices)
    return [*lines, *commit_differences(lines, await _commitments(connection, month, lines))]


async def _reversal(connection: AsyncConnection, month: date, correction_id: UUID) -> list[Difference]:
    """The lines that undo a correction of `month`, and what this changes of the shortfalls as they are billed now."""
    lines = reversed_lines(await read_lines(connection, correction_id))
    return [*lines, *commit_differences(lines, await _commitments(connection, month, lines))]


async def _commitments(
    connection: AsyncConnection, month: date, lines: Sequence[Difference]
) -> dict[tuple[UUID, date | None], Commitment]:
    """The billed commitments towards which `lines` of `month` count, by tenant and, of late usage, its month.

    Late usage whose invoice is not made yet counts when it is.
    """
    concerned: dict[date | None, set[UUID]] = defaultdict(set)
    for line in lines:
        concerned[line.used_in].add(line.tenant_id)
    late = {tenant for used_in, tenants in concerned.items() if used_in for tenant in tenants}
    billed_late = await invoiced(connection, month, late)
    found: dict[tuple[UUID, date | None], Commitment] = {}
    for used_in, tenants in concerned.items():
        counting = tenants if used_in is None else tenants & billed_late
        commitments = await billed(connection, used_in or month, sorted(counting))
        found |= {(tenant, used_in): commitment for tenant, commitment in commitments.items()}
    return found


@platform_wide("earlier corrections of a month may be of every organisation")
async def _prior_deltas(
    connection: AsyncConnection, month: date, tenants: Collection[UUID]
) -> dict[LineKey, int]:
    """Picodollars that approved corrections have added to each line of the month of `tenants`."""
    rows = await connection.execute(
        text(
            "SELECT l.tenant_id, l.kind, l.model, l.class AS token_class, l.tier, l.price_version, "
            "CASE WHEN l.kind = 'late_usage' THEN coalesce(l.used_in, (c.month - interval '1 month')::date) END "
            "AS used_in, sum(l.delta) AS delta FROM correction_lines l JOIN corrections c ON c.id = l.correction_id "
            "WHERE c.month = :month AND c.status IN ('applying', 'approved') AND l.tenant_id = ANY (:tenants) "
            "GROUP BY 1, 2, 3, 4, 5, 6, 7"
        ),
        {"month": month, "tenants": list(tenants)},
    )
    return {
        LineKey(
            row.tenant_id, row.kind, row.model, row.token_class, row.tier, row.price_version, row.used_in
        ): int(row.delta)
        for row in rows
    }


@platform_wide("a correction may reach every organisation")
async def _store(
    connection: AsyncConnection,
    month: date,
    until: datetime,
    lines: Sequence[Difference],
    *,
    spec: dict[str, Any],
    reason: str,
    by: Person,
    reverses: UUID | None,
) -> Correction:
    correction_id = uuid7()
    delta = sum(line.delta for line in lines)
    facts = {"correction_id": str(correction_id), "month": month_name(month), "delta_usd": pico_to_usd(delta)}
    approval_id = await approvals.request(connection, kind=APPROVAL_KIND, facts=facts, by=by)
    await connection.execute(
        text(
            "INSERT INTO corrections (id, month, until, spec, reason, reverses, approval_id, delta, requested_by, "
            "requested_at) VALUES (:id, :month, :until, CAST(:spec AS jsonb), :reason, :reverses, :approval, :delta, "
            ":by, clock_timestamp())"
        ),
        {
            "id": correction_id,
            "month": month,
            "until": until,
            "spec": msgspec.json.encode(spec).decode(),
            "reason": reason,
            "reverses": reverses,
            "approval": approval_id,
            "delta": delta,
            "by": by.label,
        },
    )
    await connection.execute(
        text(
            "INSERT INTO correction_lines (correction_id, position, tenant_id, kind, model, class, tier, "
            "price_version, tokens, old_price, new_price, old_exact, new_exact, delta, used_in) VALUES (:correction, "
            ":position, :tenant_id, :kind, :model, :token_class, :tier, :price_version, :tokens, :old_price, "
            ":new_price, :old_exact, :new_exact, :delta, :used_in)"
        ),
        [
            {**msgspec.structs.asdict(line), "correction": correction_id, "position": position}
            for position, line in enumerate(lines, 1)
        ],
    )
    return await get_correction(connection, correction_id)
