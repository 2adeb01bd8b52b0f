"""Decisions of a second person about every kind of act under the approval limit."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from admin import (
    accounts,
    adjustments,
    contracts,
    corrections,
    credits,
    identity_providers,
    invoices,
    money_rules,
    payments,
    periods,
    prices,
    starter_credit,
    tenants,
    users,
)
from admin.actor import Actor, require
from admin.approval_limit import Acting, CarryOut, person_of
from admin.audit import record
from admin.transactions import read, write_system
from billing.invoicing.corrections import APPROVAL_KIND as CORRECTION
from billing.ledger import approvals
from billing.ledger.approvals import Approval
from core.db import Database
from core.errors import Conflict
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES

_CARRY_OUT: Mapping[str, CarryOut[Any]] = {
    money_rules.RULES_SET: money_rules.apply_rules,
    identity_providers.PROVIDER_SET: identity_providers.apply_provider,
    users.CONFIRM: users.apply_confirmation,
    credits.CREDIT_GRANT: credits.apply_grant,
    accounts.CREDIT_LIMIT: accounts.apply_credit_limit,
    prices.PRICE_SET: prices.apply_price,
    prices.PRICE_END: prices.apply_price_end,
    prices.PRICE_WITHDRAW: prices.apply_price_withdrawal,
    contracts.CONTRACT_ADD: contracts.apply_contract,
    contracts.CONTRACT_END: contracts.apply_contract_end,
    invoices.WRITE_OFF: invoices.apply_write_off,
    tenants.TIER_SET: tenants.apply_tier,
    tenants.HIGHEST_TIER_SET: tenants.apply_highest_tier,
    starter_credit.STARTER_CREDIT_SET: starter_credit.apply_starter_credit,
    periods.PARKED_WRITE_OFF: periods.apply_parked_write_off,
}
"""What carries out an approved act, in the transaction of the decision."""


class Decision(msgspec.Struct, frozen=True):
    """A decided request and what came of it."""

    approval: Approval
    result: dict[str, Any] | None
    """The view that the act returns; None when it was rejected or returns none."""


async def list_approvals(
    database: Database,
    actor: Actor,
    *,
    kind: str | None = None,
    tenant_id: UUID | None = None,
    expired: bool = False,
) -> list[Approval]:
    """Pending approvals of a kind and an organisation (None = any), the oldest first; with `expired`, those that
    expired within 30 days.
    """
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await approvals.list_open(connection, kind=kind, tenant_id=tenant_id, expired=expired)


async def decide(
    database: Database, actor: Actor, *, approval_id: UUID, approve: bool, reason: str | None = None
) -> Decision:
    """Approve a request, which carries its act out, or reject it. The requester cannot approve it.

    An act that fails leaves its request open. Raises NotFound; Conflict when it is decided, the actor's own, or when
    the actor or the requester is not known as a person; and what the act raises.
    """
    require(actor, *PLATFORM_ROLES)
    async with read(database, actor, PLATFORM_ROLES) as connection:
        found = await approvals.get(connection, approval_id)
    if found.kind == adjustments.KIND:
        made: Any = await adjustments.decide_adjustment(
            database, actor, approval_id=approval_id, approve=approve, reason=reason
        )
    elif found.kind == payments.REFUND:
        made = await payments.decide_refund(
            database, actor, approval_id=approval_id, approve=approve, reason=reason
        )
    elif found.kind == CORRECTION:
        made = await corrections.decide_correction(
            database,
            actor,
            correction_id=UUID(found.facts["correction_id"]),
            approve=approve,
            reason=reason,
        )
    else:
        made = await _decide(database, actor, found, approve=approve, reason=reason)
    async with read(database, actor, PLATFORM_ROLES) as connection:
        decided = await approvals.get(connection, approval_id)
    return Decision(decided, _facts(made) if approve else None)


async def _decide(
    database: Database, actor: Actor, found: Approval, *, approve: bool, reason: str | None
) -> object:
    cleaned = None if reason is None else clean_reason(reason)
    carry_out = _CARRY_OUT.get(found.kind)
    if found.kind == periods.PERIOD_CLOSE and approve:
        async with database.system() as connection:
            await approvals.check_decidable(connection, found.id, by=person_of(actor))
        carry_out = await periods.prepare_close(database, found.facts)
    elif carry_out is None and found.kind != periods.PERIOD_CLOSE:
        raise Conflict(f"requests for a {found.kind} are not decided here")
    made: object = None
    async with write_system(database) as connection:
        await approvals.decide(connection, found.id, by=person_of(actor), approve=approve)
        if approve and carry_out is not None:
            acting = Acting(actor, found.requested_by, actor.label)
            made = await carry_out(connection, acting, found.tenant_id, found.facts)
        await record(
            connection,
            actor,
            f"{found.kind}.approve" if approve else f"{found.kind}.reject",
            tenant_id=found.tenant_id,
            object_kind="approval",
            object_id=found.id,
            reason=cleaned,
            after=found.facts,
        )
    return made


def _facts(view: object) -> dict[str, Any] | None:
    plain = msgspec.to_builtins(view)
    return {"data": plain} if isinstance(plain, list) else plain
