"""The platform's rules about money: one row, which the first start stores and later only people change."""

import msgspec
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.functions import coalesce

from billing.ledger.tables import money_rules
from core.money import PICO_PER_USD
from tenants.scoping import platform_wide


class MoneyRules(msgspec.Struct, frozen=True):
    """The rules; amounts are picodollars. The defaults hold in a database in which no start has stored any."""

    approval_limit: int = 100 * PICO_PER_USD
    """What one person may move alone for an organisation within 30 days."""
    approval_days: int = 14
    """Days that an act may wait for another person."""
    default_credit_limit: int = 1_000 * PICO_PER_USD
    """What a new postpaid organisation may owe, unpaid invoices included."""


@platform_wide("one row of rules for the platform")
async def read_rules(connection: AsyncConnection) -> MoneyRules:
    """The rules that hold."""
    row = (await connection.execute(select(money_rules))).one_or_none()
    stored = {} if row is None else {name: row._mapping[name] for name in MoneyRules.__struct_fields__}
    return MoneyRules(**{name: int(value) for name, value in stored.items() if value is not None})


@platform_wide("one row of rules for the platform")
async def store_first_rules(connection: AsyncConnection, rules: MoneyRules) -> bool:
    """Store those of `rules` that no start has stored yet; returns whether there were any."""
    values = msgspec.structs.asdict(rules)
    row = (await connection.execute(select(money_rules))).one_or_none()
    if row is not None and all(row._mapping[name] is not None for name in values):
        return False
    await connection.execute(
        insert(money_rules)
        .values(values)
        .on_conflict_do_update(
            index_elements=["id"],
            set_={name: coalesce(money_rules.c[name], value) for name, value in values.items()},
        )
    )
    return True


async def store_rules(connection: AsyncConnection, rules: MoneyRules) -> None:
    """Replace the rules."""
    values = msgspec.structs.asdict(rules)
    await connection.execute(
        insert(money_rules).values(values).on_conflict_do_update(index_elements=["id"], set_=values)
    )
