"""Contracts of organisations: discount, committed spend, payment terms, service level."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import read_scoped, write_system
from billing.ledger import accounts
from billing.pricing import contracts
from billing.pricing.contracts import DEFAULT_PAYMENT_DAYS, Contract
from billing.pricing.prices import CURRENCY, check_currency
from core.db import Database
from core.errors import InvalidRequest
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES


class ContractView(msgspec.Struct, frozen=True):
    """A contract for display; amounts are decimal strings of US dollars."""

    id: UUID
    tenant_id: UUID
    effective_from: str
    effective_to: str | None
    discount_bps: int
    """Basis points off the list price: 1500 = 15 %."""
    commit_monthly_usd: str | None
    payment_days: int
    automatic_payment: bool
    """Whether Stripe charges the saved card for invoices; otherwise it mails them with their due date."""
    sla: dict[str, Any] | None
    reason: str
    created_by: str
    ended_by: str | None


async def add_contract(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    effective_from: datetime | None = None,
    effective_to: datetime | None = None,
    discount_bps: int = 0,
    commit_monthly_usd: str | None = None,
    payment_days: int = DEFAULT_PAYMENT_DAYS,
    automatic_payment: bool = False,
    sla: dict[str, Any] | None = None,
    currency: str = CURRENCY,
    reason: str,
) -> ContractView:
    """Add a contract from `effective_from` (None = now). Its discount is applied to the customer's prices at once.

    `commit_monthly_usd` is what a month costs at least (postpaid); `sla` a rule of billing/pricing/sla_terms.py. Raises
    InvalidRequest, NotFound, Conflict when it overlaps another contract.
    """
    require(actor, *PLATFORM_ROLES)
    reason = clean_reason(reason)
    check_currency(currency)
    commit = (
        None if commit_monthly_usd is None else accounts.parse_usd(commit_monthly_usd, "commit_monthly_usd")
    )
    async with write_system(database) as connection:
        account = await accounts.get_account(connection, tenant_id)
        if commit is not None and account.mode == "prepaid":
            raise InvalidRequest(
                "a committed spend takes a postpaid organisation: what prepaid ones lack to it would never be charged",
                param="commit_monthly_usd",
            )
        contract = await contracts.add_contract(
            connection,
            tenant_id=tenant_id,
            effective_from=effective_from,
            effective_to=effective_to,
            discount_bps=discount_bps,
            commit_monthly=commit,
            payment_days=payment_days,
            automatic_payment=automatic_payment,
            sla=sla,
            reason=reason,
            created_by=actor.label,
        )
        view = _view(contract)
        await record(
            connection,
            actor,
            "contract.add",
            tenant_id=tenant_id,
            object_kind="contract",
            object_id=contract.id,
            reason=reason,
            after=view,
        )
    return view


async def end_contract(
    database: Database, actor: Actor, *, contract_id: UUID, at: datetime | None = None, reason: str
) -> ContractView:
    """End a contract and its derived prices at `at` (None = now). A contract that has not begun is withdrawn.

    Raises NotFound, InvalidRequest, Conflict.
    """
    require(actor, *PLATFORM_ROLES)
    reason = clean_reason(reason)
    async with write_system(database) as connection:
        before = await contracts.get_contract(connection, contract_id)
        after = await contracts.end_contract(connection, contract_id, at=at, by=actor.label)
        await record(
            connection,
            actor,
            "contract.end",
            tenant_id=after.tenant_id,
            object_kind="contract",
            object_id=contract_id,
            reason=reason,
            before=_view(before),
            after=_view(after),
        )
    return _view(after)


async def list_contracts(
    database: Database, actor: Actor, *, tenant_id: UUID | None = None
) -> list[ContractView]:
    """Contracts, past and future. A tenant role sees its own."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return [_view(contract) for contract in await contracts.list_contracts(connection, scope)]


def _view(contract: Contract) -> ContractView:
    return ContractView(
        id=contract.id,
        tenant_id=contract.tenant_id,
        effective_from=contract.effective_from.isoformat(),
        effective_to=None if contract.effective_to is None else contract.effective_to.isoformat(),
        discount_bps=contract.discount_bps,
        commit_monthly_usd=contract.commit_monthly_usd,
        payment_days=contract.payment_days,
        automatic_payment=contract.automatic_payment,
        sla=contract.sla,
        reason=contract.reason,
        created_by=contract.created_by,
        ended_by=contract.ended_by,
    )
