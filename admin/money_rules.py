"""The approval limit, how long acts wait for approval, and the default credit limit: kept in the database.

The first start stores them from its settings. No environment changes them later.
"""

from decimal import Decimal
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.approval_limit import Acting, Facts, under_limit
from admin.audit import record
from admin.transactions import write_system
from billing.ledger import accounts, money_rules
from core.db import Database
from core.errors import InvalidRequest
from core.money import pico_to_usd, usd_to_pico
from tenants import members
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ADMIN

RULES_SET = "money_rules.set"
"""The kind of changes of the rules under the approval limit."""
MAX_DAYS = 366


class MoneyRules(msgspec.Struct, frozen=True):
    """The rules for display."""

    approval_limit_usd: str
    """US dollars that one person may move alone for one organisation in 30 days, all acts added up."""
    approval_days: int
    """Days that an act may wait for another person."""
    default_credit_limit_usd: str
    """US dollars that a new postpaid organisation may owe, unpaid invoices included."""


async def get_rules(database: Database) -> MoneyRules:
    """The rules that hold."""
    async with database.read() as connection:
        return await _rules(connection)


async def store_first_rules(
    database: Database,
    actor: Actor,
    *,
    approval_limit_usd: Decimal,
    approval_days: int,
    default_credit_limit_usd: Decimal,
) -> MoneyRules:
    """Store the rules that the database lacks, as a start does. Returns those that hold."""
    first = money_rules.MoneyRules(
        approval_limit=usd_to_pico(approval_limit_usd),
        approval_days=approval_days,
        default_credit_limit=usd_to_pico(default_credit_limit_usd),
    )
    async with write_system(database) as connection:
        if await money_rules.store_first_rules(connection, first):
            await _record(connection, actor, None, "first start")
        return await _rules(connection)


async def set_rules(
    database: Database,
    actor: Actor,
    *,
    reason: str,
    approval_limit_usd: str | None = None,
    approval_days: int | None = None,
    default_credit_limit_usd: str | None = None,
) -> MoneyRules:
    """Change rules; None leaves one as it is. On a platform with two people another person must approve it.

    Raises InvalidRequest, PermissionDenied, WaitsForApproval.
    """
    require(actor, PLATFORM_ADMIN)
    if approval_days is not None and not 1 <= approval_days <= MAX_DAYS:
        raise InvalidRequest(
            f"approval_days must be 1 to {MAX_DAYS}, not {approval_days}", param="approval_days"
        )
    changes = {
        "approval_limit_usd": _usd(approval_limit_usd, "approval_limit_usd"),
        "approval_days": approval_days,
        "default_credit_limit_usd": _usd(default_credit_limit_usd, "default_credit_limit_usd"),
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        raise InvalidRequest(
            "name a rule to change: approval_limit_usd, approval_days or default_credit_limit_usd"
        )

    async def unbounded(connection: AsyncConnection) -> int | None:
        await members.lock_administrators(connection)
        return None if await members.has_two_people(connection) else 0

    return await under_limit(
        database,
        actor,
        apply_rules,
        kind=RULES_SET,
        tenant_id=None,
        amount=unbounded,
        facts=changes | {"reason": clean_reason(reason)},
    )


async def apply_rules(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> MoneyRules:
    """Carry out `set_rules`."""
    del tenant_id
    before = await _rules(connection)
    after = msgspec.structs.replace(
        before, **{name: facts[name] for name in MoneyRules.__struct_fields__ if name in facts}
    )
    await money_rules.store_rules(
        connection,
        money_rules.MoneyRules(
            approval_limit=usd_to_pico(after.approval_limit_usd),
            approval_days=after.approval_days,
            default_credit_limit=usd_to_pico(after.default_credit_limit_usd),
        ),
    )
    await _record(connection, acting.actor, before, facts["reason"])
    return after


def _usd(amount: str | None, param: str) -> str | None:
    return None if amount is None else pico_to_usd(accounts.parse_usd(amount, param))


async def _rules(connection: AsyncConnection) -> MoneyRules:
    rules = await money_rules.read_rules(connection)
    return MoneyRules(
        approval_limit_usd=pico_to_usd(rules.approval_limit),
        approval_days=rules.approval_days,
        default_credit_limit_usd=pico_to_usd(rules.default_credit_limit),
    )


async def _record(connection: AsyncConnection, actor: Actor, before: MoneyRules | None, reason: str) -> None:
    await record(
        connection,
        actor,
        RULES_SET,
        tenant_id=None,
        object_kind="money_rules",
        object_id="platform",
        reason=reason,
        before=before,
        after=await _rules(connection),
    )
