"""Contracts of organisations: discount, committed spend, payment terms, service level."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.approval_limit import Acting, Facts, instant_fact, parse_instant, under_limit
from admin.audit import record
from admin.price_losses import discount_warning
from admin.prices import PRICE_BELOW_COST
from admin.transactions import now_of, read, read_scoped
from billing.ledger import accounts
from billing.ledger.months import month_name
from billing.pricing import contracts
from billing.pricing.contracts import DEFAULT_PAYMENT_DAYS, Contract
from billing.pricing.prices import CURRENCY, check_currency
from core.db import Database
from core.errors import Conflict, InvalidRequest
from core.money import pico_to_usd
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES
from workers.added_models import read_catalog

CONTRACT_ADD = "contract.add"
CONTRACT_END = "contract.end"
"""Kinds of acts under the approval limit. A contract has no bound: its terms hold for all use while it lasts."""


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


class EndedContract(ContractView, frozen=True):
    """A contract that was ended, and what it still costs."""

    commitment_due_usd: str | None
    """What remains due of the committed spend for the month inside which it ends; None = nothing."""
    warning: str | None
    """That as a sentence."""


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
    below_cost: bool = False,
    reason: str,
) -> ContractView:
    """Add a contract from `effective_from` (None = now). Its discount is applied to the customer's prices at once.

    `commit_monthly_usd` is what a month costs at least (postpaid); `sla` a rule of billing/pricing/sla_terms.py. Waits
    for a second person. A discount that puts prices below cost is only saved with `below_cost`. Raises InvalidRequest,
    NotFound, WaitsForApproval, Conflict when it overlaps another contract, and with the code PRICE_BELOW_COST without
    that confirmation.
    """
    require(actor, *PLATFORM_ROLES)
    check_currency(currency)
    facts = {
        "effective_from": instant_fact(effective_from),
        "effective_to": instant_fact(effective_to),
        "discount_bps": discount_bps,
        "commit_monthly_usd": commit_monthly_usd,
        "payment_days": payment_days,
        "automatic_payment": automatic_payment,
        "sla": sla,
        "reason": clean_reason(reason),
    }
    async with read(database, actor, PLATFORM_ROLES) as connection:
        warning = await _loss(connection, tenant_id, facts)
    if warning is not None:
        if not below_cost:
            raise Conflict(
                f"this discount is {warning}; confirm with below_cost (--below-cost) to save it",
                code=PRICE_BELOW_COST,
                param="below_cost",
            )
        facts["below_cost"] = warning
    return await under_limit(
        database,
        actor,
        apply_contract,
        kind=CONTRACT_ADD,
        tenant_id=tenant_id,
        amount=None,
        facts=facts,
    )


async def _loss(connection: AsyncConnection, tenant_id: UUID, facts: Facts) -> str | None:
    """Of what a contract's discount warns."""
    return await discount_warning(
        connection,
        await read_catalog(connection),
        facts["discount_bps"],
        tenant_id=tenant_id,
        start=parse_instant(facts["effective_from"]),
        end=parse_instant(facts["effective_to"]),
    )


async def apply_contract(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> ContractView:
    """Carry out `add_contract`."""
    assert tenant_id is not None  # noqa: S101 - requests of this kind always name it
    committed = facts["commit_monthly_usd"]
    commit = None if committed is None else accounts.parse_usd(committed, "commit_monthly_usd")
    if "below_cost" not in facts and (warning := await _loss(connection, tenant_id, facts)) is not None:
        raise Conflict(
            f"this discount is {warning} since it was asked for; reject it, and ask again with below_cost "
            "(--below-cost)",
            code=PRICE_BELOW_COST,
        )
    account = await accounts.get_account(connection, tenant_id)
    if commit is not None and account.mode == "prepaid":
        raise InvalidRequest(
            "a committed spend takes a postpaid organisation: what prepaid ones lack to it would never be charged",
            param="commit_monthly_usd",
        )
    contract = await contracts.add_contract(
        connection,
        tenant_id=tenant_id,
        effective_from=parse_instant(facts["effective_from"]),
        effective_to=parse_instant(facts["effective_to"]),
        discount_bps=facts["discount_bps"],
        commit_monthly=commit,
        payment_days=facts["payment_days"],
        automatic_payment=facts["automatic_payment"],
        sla=facts["sla"],
        reason=facts["reason"],
        created_by=acting.requested_by,
    )
    view = _view(contract)
    await record(
        connection,
        acting.actor,
        CONTRACT_ADD,
        tenant_id=tenant_id,
        object_kind="contract",
        object_id=contract.id,
        reason=facts["reason"],
        after=view,
    )
    return view


async def end_contract(
    database: Database,
    actor: Actor,
    *,
    contract_id: UUID,
    at: datetime | None = None,
    reason: str,
) -> EndedContract:
    """End a contract and its derived prices at `at` (None = now). A contract that has not begun is withdrawn.

    Warns of the committed spend that remains due for a part of a month. Waits for a second person.
    Raises NotFound, InvalidRequest, Conflict, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    reason = clean_reason(reason)
    async with read(database, actor, PLATFORM_ROLES) as connection:
        contract = await contracts.get_contract(connection, contract_id)
    facts = {
        "contract_id": str(contract_id),
        "effective_from": instant_fact(contract.effective_from),
        "effective_to": instant_fact(contract.effective_to),
        "discount_bps": contract.discount_bps,
        "commit_monthly_usd": contract.commit_monthly_usd,
        "sla": contract.sla,
        "at": instant_fact(at),
        "reason": reason,
    }
    return await under_limit(
        database,
        actor,
        apply_contract_end,
        kind=CONTRACT_END,
        tenant_id=contract.tenant_id,
        amount=None,
        facts=facts,
        warning_of=lambda ended: ended.warning,
    )


async def end_warning(
    database: Database, actor: Actor, *, contract_id: UUID, at: datetime | None = None
) -> str | None:
    """What `end_contract` would warn of; None = nothing. Changes nothing. Raises NotFound."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        contract = await contracts.get_contract(connection, contract_id)
        end = at or await now_of(connection)
    withdrawn = end <= contract.effective_from
    return _warning(msgspec.structs.replace(contract, effective_to=end, withdrawn=withdrawn))


async def apply_contract_end(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> EndedContract:
    """Carry out `end_contract`; the contract names its organisation."""
    del tenant_id
    contract_id = UUID(facts["contract_id"])
    before = await contracts.get_contract(connection, contract_id)
    after = await contracts.end_contract(
        connection, contract_id, at=parse_instant(facts["at"]), by=acting.requested_by
    )
    await record(
        connection,
        acting.actor,
        CONTRACT_END,
        tenant_id=after.tenant_id,
        object_kind="contract",
        object_id=contract_id,
        reason=facts["reason"],
        before=_view(before),
        after=_view(after),
    )
    due = contracts.due_at_end(after)
    return EndedContract(
        **msgspec.structs.asdict(_view(after)),
        commitment_due_usd=None if due is None else pico_to_usd(due[1]),
        warning=_warning(after),
    )


async def list_contracts(
    database: Database, actor: Actor, *, tenant_id: UUID | None = None
) -> list[ContractView]:
    """Contracts, past and future. A tenant role sees its own."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return [_view(contract) for contract in await contracts.list_contracts(connection, scope)]


def _warning(contract: Contract) -> str | None:
    """What the end of `contract` leaves due of its committed spend, as a sentence; None = nothing."""
    due = contracts.due_at_end(contract)
    if due is None:
        return None
    month, amount = due
    return (
        f"the contract ends inside {month_name(month)}: ${pico_to_usd(amount)} of its committed spend remains due "
        "for its part of the month"
    )


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
