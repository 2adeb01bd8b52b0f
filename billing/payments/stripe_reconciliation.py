"""Compares Stripe with our books for a month: invoices, payments, credit notes, cash, refunds, the meter.

A job calls Stripe outside of any transaction and stores the result. It asks Stripe only for objects that changed since
they were found equal (stripe_compared.py). The close of a month reads the newest result and requires that nothing of
the month changed since that comparison began (stripe_close_check.py).
"""

from datetime import UTC, date, datetime

import msgspec
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import bindparam

from billing.payments.stripe_books import read_books
from billing.payments.stripe_compared import CallBudget
from billing.payments.stripe_differences import compare_cash, compare_invoices, compare_meter
from billing.payments.stripe_gateway import StripeGateway
from core.db import Database
from core.ids import uuid7
from core.money import PICO_PER_CENT, pico_to_usd
from tenants.scoping import platform_wide

MAX_PROBLEMS = 200
"""Problems stored of one comparison."""


class Reconciliation(msgspec.Struct, frozen=True):
    """The result of a comparison."""

    month: date
    began_at: datetime
    at: datetime
    """When it ended."""
    ok: bool
    """Whether everything was compared and there were no problems."""
    invoices: int
    """Invoices of our books in the comparison."""
    invoiced_usd: str
    """As Stripe has it."""
    paid_usd: str
    """As Stripe has it."""
    movements: int
    """Balance transactions of Stripe in the month."""
    metered_tokens: int
    """Tokens in Stripe's meter."""
    problems: list[str]
    """The first MAX_PROBLEMS differences."""
    waiting: int = 0
    """Objects that the budget of calls left for a later comparison."""


async def compare_month(
    database: Database,
    gateway: StripeGateway,
    month: date,
    *,
    only_changed: bool = False,
    budget: CallBudget | None = None,
) -> Reconciliation:
    """Compare `month` (its first day) with Stripe and store the result. Raises Unavailable without an answer.

    With `only_changed`, objects that were found equal and have not changed count with the figures of then. `budget`
    bounds the calls of Stripe, where a list counts as one; None = no bound. When it leaves objects waiting and no
    problem was found, no result is stored: the next comparison with `only_changed` goes on with them.
    """
    async with database.read() as connection:
        ours = await read_books(connection, month, budget or CallBudget(), only_changed=only_changed)
    problems = ours.problems
    invoiced, paid = await compare_invoices(gateway, ours, problems)
    movements = await compare_cash(gateway, ours, month, problems)
    tokens = await compare_meter(gateway, ours, month, problems)
    async with database.system() as connection:
        found = Reconciliation(
            month=month,
            began_at=ours.began_at,
            at=datetime.now(UTC),
            ok=not problems and not ours.waiting,
            invoices=len(ours.invoices),
            invoiced_usd=pico_to_usd(invoiced * PICO_PER_CENT),
            paid_usd=pico_to_usd(paid * PICO_PER_CENT),
            movements=movements,
            metered_tokens=tokens,
            problems=problems[:MAX_PROBLEMS],
            waiting=ours.waiting,
        )
        if found.ok or problems:
            await _store(connection, found)
        await ours.compared.store(connection, month)
    return found


async def _store(connection: AsyncConnection, found: Reconciliation) -> None:
    statement = text(
        "INSERT INTO stripe_reconciliations (id, month, began_at, ok, facts) VALUES (:id, :month, :began, :ok, :facts)"
    ).bindparams(bindparam("facts", type_=JSONB))
    await connection.execute(
        statement,
        {
            "id": uuid7(),
            "month": found.month,
            "began": found.began_at,
            "ok": found.ok,
            "facts": msgspec.to_builtins(found),
        },
    )


async def list_latest(connection: AsyncConnection, limit: int = 20) -> list[Reconciliation]:
    """At most `limit` comparisons, newest first."""
    rows = await connection.execute(
        text("SELECT facts, at FROM stripe_reconciliations ORDER BY at DESC LIMIT :limit"), {"limit": limit}
    )
    return [msgspec.convert(row.facts, Reconciliation) for row in rows]


@platform_wide("a job compares the months of the platform")
async def months_to_compare(connection: AsyncConnection) -> list[date]:
    """Past, open months that have invoices."""
    rows = await connection.execute(
        text(
            "SELECT DISTINCT i.month FROM invoices i WHERE NOT EXISTS (SELECT 1 FROM billing_periods p "
            "WHERE p.month = i.month AND p.status = 'closed') AND i.month < date_trunc('month', now(), 'UTC') "
            "ORDER BY i.month"
        )
    )
    return [row.month for row in rows]
