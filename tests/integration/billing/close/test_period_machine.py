"""Months, late usage, adjustments, corrections and reversals in any order, against a simple model.

All histories share one database, whose months only advance. Each history has its own customers. The model computes with
integers: usage, invoices to the cent, and account balances.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from billing.invoicing.correction_booking import apply_correction
from billing.invoicing.corrections import decide_correction, request_correction, request_reversal
from billing.invoicing.lines import MINIMUM_CENTS
from billing.invoicing.rerate import parse_spec
from billing.invoicing.run import make_invoices
from billing.ledger.adjustments import adjust
from billing.ledger.approvals import Person
from billing.ledger.months import bounds, month_name, month_of
from billing.usage.rollups import roll_up
from core.errors import InvalidRequest
from core.ids import uuid7
from core.money import PICO_PER_CENT
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import MODEL, Customer, make_customer, price
from tests.support.closing import close_month

RATE = 1_000_003
ANN = Person(str(UUID(int=1)), "ann")
BOB = Person(str(UUID(int=2)), "bob")
"""Picodollars per input token; odd, so that nearly every line is rounded."""


def cents(exact: int) -> int:
    """Half away from zero, by whole numbers."""
    whole = (2 * abs(exact) + PICO_PER_CENT) // (2 * PICO_PER_CENT)
    return whole if exact >= 0 else -whole


@dataclass
class Bill:
    """An invoice of the model: original and present cost by kind of usage, and the credited amount."""

    tokens: dict[str, int]
    total: int
    open: bool
    rates: dict[str, int]
    credited: int = 0


@dataclass
class Account:
    """A postpaid customer of the model."""

    customer: Customer
    used: dict[str, int] = field(default_factory=lambda: {"usage": 0, "late_usage": 0})
    """Tokens of the present month."""
    moved: list[int] = field(default_factory=list)
    """What adjustments changed in the present month; above 0: the customer owes more."""
    carried: tuple[int, int] = (0, 0)
    revenue: int = 0
    receivable: int = 0
    invoiced: int = 0
    """Cents."""
    bills: dict[date, Bill] = field(default_factory=dict)

    def use(self, kind: str, tokens: int) -> None:
        self.used[kind] += tokens
        self.revenue += tokens * RATE
        self.receivable += tokens * RATE

    def move(self, amount: int) -> None:
        self.moved.append(amount)
        self.revenue += amount
        self.receivable += amount

    def close(self, month: date) -> tuple[int, int] | None:
        """End the month; returns the invoice's total cents and lines, None when there is no invoice."""
        usage = [tokens * RATE for tokens in self.used.values() if tokens]
        lines = [(one, cents(one)) for one in (*usage, *(one for one in self.moved if one))]
        if self.carried != (0, 0):
            lines.append(self.carried)
        if not lines:
            return None
        exact, total = sum(one for one, _ in lines), sum(one for _, one in lines)
        count = len(lines)
        payable = exact > 0 and total >= MINIMUM_CENTS
        if payable:
            self.receivable -= exact
            self.invoiced += total
            self.carried = (0, 0)
        else:
            self.carried = (exact, total)
            count += (exact, total) != (0, 0)
            total = 0
        rates = dict.fromkeys(self.used, RATE)
        self.bills[month] = Bill(dict(self.used), total, payable and total > 0, rates)
        self.used = dict.fromkeys(self.used, 0)
        self.moved = []
        return total, count

    def correct(self, month: date, rate: int) -> int:
        """Re-rate a month; returns the change of its cost.

        A reduction is credited on the invoice if it has room, and if no less than what Stripe collects remains.
        """
        bill = self.bills.get(month)
        if bill is None:
            return 0
        delta = credit = 0
        for kind, tokens in bill.tokens.items():
            old, new = tokens * bill.rates[kind], tokens * rate
            delta += new - old
            credit += max(cents(old) - cents(new), 0)
            bill.rates[kind] = rate
        left = bill.total - bill.credited - credit
        if delta < 0 and bill.open and credit > 0 and (left == 0 or left >= MINIMUM_CENTS):
            self.revenue += delta
            self.invoiced -= credit
            bill.credited += credit
        elif delta:
            self.move(delta)
        return delta


@dataclass
class Applied:
    """An approved correction of the model, and how to undo it."""

    id: UUID
    month: date
    deltas: list[int]
    before: list[dict[str, int] | None]
    after: list[dict[str, int] | None]


class PeriodMachine(RuleBasedStateMachine):
    """Random histories of two postpaid customers."""

    runner: asyncio.Runner
    platform: Platform

    def __init__(self) -> None:
        super().__init__()
        database = self.platform.database
        self.accounts = [Account(self.do(make_customer(database, mode="postpaid"))) for _ in range(2)]
        self.closed: list[date] = []
        self.frozen: dict[date, Any] = {}
        self.applied: list[Applied] = []

    def do(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    who = st.integers(0, 1)
    tokens = st.integers(1, 3_000_000)

    @initialize(first=tokens, second=tokens)
    def begin(self, first: int, second: int) -> None:
        """A closed month with invoices, so that there is something to correct."""
        self.use(0, first, False)
        self.use(1, second, True)
        self.close()

    @rule(who=who, tokens=tokens, late=st.booleans())
    def use(self, who: int, tokens: int, late: bool) -> None:
        """Usage of now or of the previous month; the clock is never within 48 hours of a month's start."""

        async def act() -> None:
            start, _ = bounds(month_of(await self.platform.clock.now()))
            end = start - timedelta(hours=1) if late else None
            await self.platform.use(self.accounts[who].customer, input=tokens, ended_at=end)

        self.do(act())
        self.accounts[who].use("late_usage" if late else "usage", tokens)

    @rule(who=who, amount=st.integers(-(4 * 10**12), 4 * 10**12).filter(bool))
    def adjust(self, who: int, amount: int) -> None:
        async def act() -> None:
            async with self.platform.database.system() as connection:
                await adjust(
                    connection,
                    adjustment_id=uuid7(),
                    tenant_id=self.accounts[who].customer.tenant_id,
                    amount=amount,
                    reason="a test",
                    created_by="ann",
                )

        self.do(act())
        self.accounts[who].move(-amount)

    @rule()
    def close(self) -> None:
        month = self.do(self.platform.end_month())
        self.do(close_month(self.platform.database, month, by="fin"))
        self.closed.append(month)
        for account in self.accounts:
            expected = account.close(month)
            lines = self.do(self.platform.lines(account.customer, month))
            if expected is None:
                assert lines == []
                continue
            invoice = self.do(self.platform.invoice(account.customer, month))
            assert (invoice.total_cents, len(lines)) == expected
        self.frozen[month] = self.snapshot(month)

    @precondition(lambda self: self.closed)
    @rule()
    def close_again(self) -> None:
        month = self.closed[-1]
        assert self.do(close_month(self.platform.database, month, by="x")).ok
        assert self.do(make_invoices(self.platform.database, month)).made == 0

    @precondition(lambda self: self.closed)
    @rule(pick=st.integers(0, 9), share=st.integers(0, 999))
    def make_cheaper(self, pick: int, share: int) -> None:
        """A price lower than any before: the reduction is credited if there is an invoice with room."""
        bills = [account.bills.get(self.closed[pick % len(self.closed)]) for account in self.accounts]
        lowest = min((rate for bill in bills if bill for rate in bill.rates.values()), default=RATE)
        self.correct(pick, lowest * share // 1000)

    @precondition(lambda self: self.closed)
    @rule(pick=st.integers(0, 9), rate=st.integers(0, 3 * RATE))
    def correct(self, pick: int, rate: int) -> None:
        month = self.closed[pick % len(self.closed)]
        text = f"{rate // 10**6}.{rate % 10**6:06d}"
        # Only of this history's customers: the database has other histories too.
        spec = parse_spec(
            {
                "rates": [
                    {
                        "model": MODEL,
                        "input": text,
                        "output": "1",
                        "tenant_id": str(account.customer.tenant_id),
                    }
                    for account in self.accounts
                ]
            }
        )

        async def act() -> UUID | None:
            await roll_up(self.platform.database)
            async with self.platform.database.system() as connection:
                try:
                    asked = await request_correction(connection, month, spec, reason="r", by=ANN)
                except InvalidRequest:
                    return None
            async with self.platform.database.system() as connection:
                await decide_correction(connection, asked.id, by=BOB, approve=True)
            await apply_correction(self.platform.database, asked.id)
            return asked.id

        before = self.rates(month)
        correction = self.do(act())
        deltas = [account.correct(month, rate) for account in self.accounts]
        assert (correction is None) == (not any(deltas))
        if correction is not None:
            self.applied.append(Applied(correction, month, deltas, before, self.rates(month)))

    def rates(self, month: date) -> list[dict[str, int] | None]:
        bills = [account.bills.get(month) for account in self.accounts]
        return [None if bill is None else dict(bill.rates) for bill in bills]

    @precondition(lambda self: self.applied)
    @rule()
    def reverse(self) -> None:
        last = self.applied.pop()

        async def act() -> None:
            async with self.platform.database.system() as connection:
                asked = await request_reversal(connection, last.id, reason="r", by=ANN)
            async with self.platform.database.system() as connection:
                await decide_correction(connection, asked.id, by=BOB, approve=True)
            await apply_correction(self.platform.database, asked.id)

        self.do(act())
        for account, delta, rates in zip(self.accounts, last.deltas, last.before, strict=True):
            if delta:
                account.move(-delta)
            if rates is not None:
                account.bills[last.month].rates = rates

    def snapshot(self, month: date) -> Any:
        start, end = bounds(month)
        tenants = [account.customer.tenant_id for account in self.accounts]
        return (
            self.do(
                self.platform.rows(
                    "SELECT l.*, i.total_cents, i.exact AS total FROM invoice_lines l "
                    "JOIN invoices i ON i.id = l.invoice_id WHERE i.month = :month AND i.tenant_id = ANY (:tenants) "
                    "ORDER BY l.id",
                    month=month,
                    tenants=tenants,
                )
            ),
            self.do(
                self.platform.rows(
                    "SELECT count(*), sum(amount), max(id) FROM ledger_transfers "
                    "WHERE effective_at >= :start AND effective_at < :end",
                    start=start,
                    end=end,
                )
            ),
            self.do(
                self.platform.rows(
                    "SELECT sum(cost), sum(requests) FROM usage_hours WHERE hour >= :start AND hour < :end",
                    start=start,
                    end=end,
                )
            ),
        )

    @invariant()
    def accounts_agree(self) -> None:
        rows = self.do(
            self.platform.rows(
                "SELECT tenant_id, code, debit - credit AS net FROM ledger_balances "
                "WHERE tenant_id = ANY (:tenants) AND code IN ('revenue', 'receivable', 'invoiced')",
                tenants=[account.customer.tenant_id for account in self.accounts],
            )
        )
        held = {(row.tenant_id, row.code): int(row.net) for row in rows if row.net}
        expected: dict[tuple[UUID, str], int] = {}
        for account in self.accounts:
            tenant_id = account.customer.tenant_id
            expected[tenant_id, "revenue"] = -account.revenue
            expected[tenant_id, "receivable"] = account.receivable
            expected[tenant_id, "invoiced"] = account.invoiced * PICO_PER_CENT
        assert held == {key: net for key, net in expected.items() if net}

    def teardown(self) -> None:
        for month, before in self.frozen.items():
            assert self.snapshot(month) == before, f"{month_name(month)} moved after its close"
        self.do(self.platform.is_sound())


@pytest.mark.promise(17)
def test_period_machine(pg_url: str) -> None:
    with asyncio.Runner() as runner:

        async def prepare() -> Platform:
            platform = await Platform.begin(pg_url)
            await price(platform.database, input=f"{RATE // 10**6}.{RATE % 10**6:06d}")
            return platform

        PeriodMachine.runner = runner
        PeriodMachine.platform = runner.run(prepare())
        try:
            run_state_machine_as_test(
                PeriodMachine,
                settings=settings(
                    max_examples=10,
                    stateful_step_count=14,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(PeriodMachine.platform.database.close())
