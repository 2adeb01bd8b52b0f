"""Payments: buying credit, automatic purchases, tax ids, refunds, disputes, Stripe's events and the comparison.

Functions that talk to Stripe take a gateway (`billing.payments.stripe_gateway.open_gateway(settings)`).
"""

from datetime import date
from uuid import UUID

import msgspec

from admin.actor import Actor, require
from admin.approval_limit import admit, person_of
from admin.audit import record
from admin.transactions import page_size, read, read_scoped, write_system
from billing.ledger import accounts, approvals
from billing.ledger.approvals import Approval
from billing.payments import (
    auto_topup_rules,
    customers,
    events,
    refund_requests,
    stripe_reconciliation,
    topups,
    views,
)
from billing.payments.auto_topup_rules import AutoTopupRule
from billing.payments.refund_requests import RequestedRefund
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_reconciliation import Reconciliation
from billing.payments.topups import StartedTopup, to_cents
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from core.money import PICO_PER_CENT, pico_to_usd, usd_to_pico
from core.outbox import enqueue
from tenants.names import clean_reason
from tenants.roles import FINANCE, PLATFORM_ROLES, READERS, TENANT_MANAGERS

PURCHASE_ROLES = (*TENANT_MANAGERS, FINANCE)
"""Roles that may buy credit for an organisation: its owner, and platform roles on its behalf."""
REFUND = "refund"
"""The approval kind of refunds."""
_PUSHED = ("invoice", "credit_note")


async def start_topup(
    database: Database,
    actor: Actor,
    gateway: StripeGateway,
    *,
    tenant_id: UUID,
    amount_usd: str,
    return_url: str,
    topup_id: UUID | None = None,
) -> StartedTopup:
    """Begin to buy credit: the answer's `url` is the page to pay at. The same `topup_id` again is the same purchase.

    Raises InvalidRequest, Conflict (a postpaid account), NotFound, PermissionDenied, Unavailable.
    """
    require(actor, *PURCHASE_ROLES, tenant_id=tenant_id)
    cents = to_cents(accounts.parse_usd(amount_usd, "amount_usd"))
    started = await topups.start_topup(
        database,
        gateway,
        tenant_id=tenant_id,
        cents=cents,
        return_url=return_url,
        by=actor.label,
        topup_id=topup_id,
    )
    async with write_system(database) as connection:
        await record(
            connection,
            actor,
            "topup.start",
            tenant_id=tenant_id,
            object_kind="topup",
            object_id=started.id,
            after={"amount_usd": started.amount_usd},
        )
    return started


async def set_auto_topup(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    enabled: bool,
    threshold_usd: str,
    amount_usd: str,
    monthly_cap_usd: str,
) -> AutoTopupRule:
    """Buy `amount_usd` by the saved card whenever less than `threshold_usd` is left, up to the cap in a UTC month.

    Raises InvalidRequest, Conflict (no saved card, a postpaid account), PermissionDenied.
    """
    require(actor, *PURCHASE_ROLES, tenant_id=tenant_id)
    cap = _whole_cents(monthly_cap_usd, "monthly_cap_usd")
    async with write_system(database) as connection:
        before = await auto_topup_rules.get_rule(connection, tenant_id)
        after = await auto_topup_rules.set_rule(
            connection,
            tenant_id=tenant_id,
            enabled=enabled,
            threshold=accounts.parse_usd(threshold_usd, "threshold_usd"),
            cents=to_cents(accounts.parse_usd(amount_usd, "amount_usd")),
            monthly_cap_cents=cap,
            by=actor.label,
        )
        await record(
            connection,
            actor,
            "auto_topup.set",
            tenant_id=tenant_id,
            object_kind="auto_topup",
            object_id=tenant_id,
            before=before,
            after=after,
        )
    return after


async def get_auto_topup(database: Database, actor: Actor, *, tenant_id: UUID) -> AutoTopupRule | None:
    """The organisation's rule; None when it never had one."""
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        return await auto_topup_rules.get_rule(connection, tenant_id)


async def set_tax_id(
    database: Database, actor: Actor, gateway: StripeGateway, *, tenant_id: UUID, kind: str, value: str
) -> None:
    """Set the tax id that stands on invoices, such as ("eu_vat", "DE123456789"). Raises InvalidRequest, NotFound."""
    require(actor, *PURCHASE_ROLES, tenant_id=tenant_id)
    await customers.set_tax_id(database, gateway, tenant_id, kind, value)
    async with write_system(database) as connection:
        await record(
            connection,
            actor,
            "tax_id.set",
            tenant_id=tenant_id,
            object_kind="tenant",
            object_id=tenant_id,
            after={"kind": kind, "value": value},
        )


async def refund(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    payment_intent: str,
    amount_usd: str | None,
    reason: str,
    refund_id: UUID | None = None,
) -> RequestedRefund:
    """Take bought credit back and pay it back to the card; None = all that is left of the purchase. A job sends it.

    It is booked at once while all refunds of the purchase together, and what the person moved alone for the customer,
    stay within the approval limit; else it waits for another person.

    Raises InvalidRequest, NotFound, Conflict: less is left, requests hold it, or the payment is disputed.
    """
    require(actor, *PLATFORM_ROLES)
    reason = clean_reason(reason)
    cents = None if amount_usd is None else _whole_cents(amount_usd, "amount_usd")
    refund_id = refund_id or uuid7()
    async with write_system(database) as connection:
        await approvals.lock(connection, person_of(actor), tenant_id)
        wanted, in_all = await refund_requests.refundable(
            connection, refund_id=refund_id, tenant_id=tenant_id, payment_intent=payment_intent, cents=cents
        )
        facts = {
            "refund_id": str(refund_id),
            "payment_intent": payment_intent,
            "amount_usd": pico_to_usd(wanted * PICO_PER_CENT),
            "reason": reason,
        }
        waiting = await admit(
            connection,
            actor,
            kind=REFUND,
            action="payment.refund",
            tenant_id=tenant_id,
            amount=wanted * PICO_PER_CENT,
            facts=facts,
            besides=(in_all - wanted) * PICO_PER_CENT,
            source_id=refund_id,
        )
        if waiting is not None:
            return _pending_view(waiting)
        made = await refund_requests.request_refund(
            connection,
            refund_id=refund_id,
            tenant_id=tenant_id,
            payment_intent=payment_intent,
            cents=cents,
            reason=reason,
            by=actor.label,
        )
        if not wanted:  # booked earlier
            return made
        await record(
            connection,
            actor,
            "payment.refund",
            tenant_id=tenant_id,
            object_kind="payment",
            object_id=payment_intent,
            reason=reason,
            after=made,
        )
    return made


async def decide_refund(
    database: Database, actor: Actor, *, approval_id: UUID, approve: bool, reason: str | None = None
) -> RequestedRefund:
    """Approve a refund, which books it, or reject it. The requester cannot approve it.

    Raises NotFound, and Conflict when it is already decided, the actor's own, or more than the purchase has left.
    """
    require(actor, *PLATFORM_ROLES)
    async with write_system(database) as connection:
        by = person_of(actor)
        approval = await approvals.decide(connection, approval_id, by=by, approve=approve)
        if approval.kind != REFUND or approval.tenant_id is None:
            raise Conflict(f"this is a request for a {approval.kind}, not for a refund")
        facts = approval.facts
        if approve:
            made = await refund_requests.request_refund(
                connection,
                refund_id=UUID(facts["refund_id"]),
                tenant_id=approval.tenant_id,
                payment_intent=facts["payment_intent"],
                cents=usd_to_pico(facts["amount_usd"]) // PICO_PER_CENT,
                reason=facts["reason"],
                by=approval.requested_by,
            )
        else:
            made = msgspec.structs.replace(_pending_view(approval), status="rejected")
        await record(
            connection,
            actor,
            "payment.refund.approve" if approve else "payment.refund.reject",
            tenant_id=approval.tenant_id,
            object_kind="approval",
            object_id=approval_id,
            reason=None if reason is None else clean_reason(reason),
            after=facts,
        )
    return made


async def list_waiting_refunds(
    database: Database, actor: Actor, *, tenant_id: UUID | None = None
) -> list[RequestedRefund]:
    """Refunds that need an approval, the oldest first."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        waiting = await approvals.list_open(connection, kind=REFUND, tenant_id=tenant_id)
    return [_pending_view(approval) for approval in waiting]


def _whole_cents(amount_usd: str, param: str) -> int:
    """The cents of an amount. Raises InvalidRequest unless they are whole."""
    cents, rest = divmod(accounts.parse_usd(amount_usd, param), PICO_PER_CENT)
    if rest:
        raise InvalidRequest(f"{param} must be whole cents", param=param)
    return cents


def _pending_view(approval: Approval) -> RequestedRefund:
    tenant_id, facts = approval.tenant_id, approval.facts
    assert tenant_id is not None  # noqa: S101 - requests of this kind always name it
    return RequestedRefund(approval.id, tenant_id, facts["amount_usd"], facts["payment_intent"], "waiting")


async def send_again(database: Database, actor: Actor, *, kind: str, object_id: UUID, reason: str) -> None:
    """Retry sending a blocked invoice or credit note to Stripe. Raises InvalidRequest, NotFound."""
    require(actor, *PLATFORM_ROLES)
    if kind not in _PUSHED:
        raise InvalidRequest(f"kind must be one of {', '.join(_PUSHED)}, not {kind[:40]!r}", param="kind")
    reason = clean_reason(reason)
    async with write_system(database) as connection:
        blocked = {(each.kind, each.object_id): each for each in await views.list_blocked(connection)}
        if (kind, object_id) not in blocked:
            raise NotFound(f"no {kind.replace('_', ' ')} {object_id} is blocked")
        await enqueue(connection, f"stripe.push_{kind}", {f"{kind}_id": str(object_id)})
        await record(
            connection,
            actor,
            "stripe.send_again",
            tenant_id=blocked[kind, object_id].tenant_id,
            object_kind=kind,
            object_id=object_id,
            reason=reason,
        )


async def list_customers(
    database: Database, actor: Actor, *, tenant_id: UUID | None = None, limit: int = 100
) -> list[views.CustomerView]:
    """Payers: Stripe customer, tax id, saved card, dunning state."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return await views.list_customers(connection, scope, page_size(limit))


async def list_topups(
    database: Database, actor: Actor, *, tenant_id: UUID | None = None, limit: int = 100
) -> list[views.TopupView]:
    """Purchases of credit, the newest first."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return await views.list_topups(connection, scope, page_size(limit))


async def list_payments(
    database: Database, actor: Actor, *, tenant_id: UUID | None = None, limit: int = 100
) -> list[views.PaymentView]:
    """Received payments, the newest first."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return await views.list_payments(connection, scope, page_size(limit))


async def list_refunds(
    database: Database, actor: Actor, *, tenant_id: UUID | None = None, limit: int = 100
) -> list[views.RefundView]:
    """Refunds, the newest first."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return await views.list_refunds(connection, scope, page_size(limit))


async def list_disputes(
    database: Database, actor: Actor, *, tenant_id: UUID | None = None, limit: int = 100
) -> list[views.DisputeView]:
    """Disputes, the newest first."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return await views.list_disputes(connection, scope, page_size(limit))


async def list_events(
    database: Database, actor: Actor, *, only_open: bool = False, limit: int = 100
) -> list[views.EventView]:
    """Stripe's events with their processing state, the newest first."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await views.list_events(connection, page_size(limit), only_open=only_open)


async def list_blocked(database: Database, actor: Actor) -> list[views.BlockedView]:
    """Invoices and credit notes whose sending failed and needs a manual retry."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await views.list_blocked(connection)


async def sync(database: Database, actor: Actor, gateway: StripeGateway) -> int:
    """Fetch missed events and apply pending ones now; returns the number of applied events."""
    require(actor, *PLATFORM_ROLES)
    await events.record_missed(database, gateway)
    return await events.apply_due(database, gateway)


async def compare(database: Database, actor: Actor, gateway: StripeGateway, *, month: date) -> Reconciliation:
    """Compare a month with Stripe and store the result. Raises Unavailable when Stripe does not answer."""
    require(actor, *PLATFORM_ROLES)
    return await stripe_reconciliation.compare_month(database, gateway, month)


async def list_comparisons(database: Database, actor: Actor, *, limit: int = 20) -> list[Reconciliation]:
    """The newest comparisons with Stripe first."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await stripe_reconciliation.list_latest(connection, page_size(limit))
