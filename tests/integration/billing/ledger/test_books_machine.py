"""Random bookings, compared with a pure model of every customer's account balances."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from billing.ledger import credits
from billing.ledger.adjustments import adjust
from billing.ledger.transfers import book, seal
from billing.ledger.verification import verify
from core.errors import Conflict
from core.ids import uuid7
from tests.integration.billing.books import BooksMachine, play
from tests.integration.billing.support import Customer, make_customer


@dataclass
class Books:
    """Debits less credits by account, and what the model needs to predict the next act."""

    customer: Customer
    prepaid: bool
    accounts: Counter[str] = field(default_factory=Counter)
    lots: dict[UUID, int] = field(default_factory=dict)
    holds: dict[UUID, tuple[Any, int]] = field(default_factory=dict)

    @property
    def balance(self) -> int:
        return -self.accounts["credit"]

    @property
    def free(self) -> int:
        return max(self.balance - sum(amount for _, amount in self.holds.values()), 0)

    def move(self, debit: str, credit: str, amount: int) -> None:
        self.accounts[debit] += amount
        self.accounts[credit] -= amount


LOTS: dict[Any, tuple[str, str]] = {
    "purchased": ("cash", "breakage"),
    "promotional": ("promotions", "promotions"),
    "sla": ("sla_credits", "sla_credits"),
}


class LedgerMachine(BooksMachine):
    """Random acts on a prepaid and a postpaid customer."""

    def __init__(self) -> None:
        super().__init__()
        self.books = [
            Books(self.wait(make_customer(self.database)), True),
            Books(self.wait(make_customer(self.database, mode="postpaid")), False),
        ]

    who = st.integers(0, 1)
    amounts = st.integers(1, 500)

    def post(self, books: Books, kind: str, debit: str, credit: str, amount: int, source: UUID) -> None:
        """Book twice; the second time changes nothing, and the same source with other facts is refused."""
        for expected in (True, False):
            made = self.act(
                lambda connection: book(
                    connection, kind, books.customer.tenant_id, debit, credit, amount, source
                )
            )
            assert made == expected
        books.move(debit, credit, amount)
        try:
            self.act(
                lambda connection: book(
                    connection, kind, books.customer.tenant_id, debit, credit, amount + 1, source
                )
            )
        except Conflict:
            return
        raise AssertionError("another amount under the same source was booked")

    @initialize(tokens=st.integers(1, 100), used=st.integers(0, 900))
    def begin(self, tokens: int, used: int) -> None:
        self.give_credit("promotional", 300)
        self.give_credit("purchased", 300)
        self.request(0, tokens, used)
        self.give_credit("sla", 200)

    @rule(kind=st.sampled_from(sorted(LOTS)), amount=amounts)
    def give_credit(self, kind: Any, amount: int) -> None:
        books, lot_id = self.books[0], uuid7()
        self.act(
            lambda connection: credits.add_lot(
                connection,
                lot_id=lot_id,
                tenant_id=books.customer.tenant_id,
                amount=amount,
                kind=kind,
                reason="r",
                created_by="t",
            )
        )
        books.move(LOTS[kind][0], "credit", amount)
        books.lots[lot_id] = amount

    @rule(who=who, tokens=amounts, used=st.integers(0, 600))
    def request(self, who: int, tokens: int, used: int) -> None:
        books = self.books[who]
        request = self.hold(books.customer, tokens)
        assert (request is not None) == (not books.prepaid or tokens <= books.free)
        if request is None:
            return
        paid = used if not books.prepaid else min(used, books.free)
        self.settle(books.customer, request, used)
        books.move("credit" if books.prepaid else "receivable", "revenue", paid)
        books.move("uncollectible", "revenue", used - paid)

    @rule(tokens=amounts)
    def leave_a_request_open(self, tokens: int) -> None:
        books = self.books[0]
        request = self.hold(books.customer, tokens)
        if request is not None:
            books.holds[request[0]] = (request[1], tokens)

    @precondition(lambda self: self.books[0].holds)
    @rule()
    def end_an_open_request(self) -> None:
        books = self.books[0]
        request_id = next(iter(books.holds))
        admitted_at, held = books.holds.pop(request_id)
        self.settle(books.customer, (request_id, admitted_at), held)
        books.move("credit", "revenue", held)

    @rule(who=who, amount=amounts, sign=st.sampled_from([1, -1]))
    def correct(self, who: int, amount: int, sign: int) -> None:
        books, adjustment_id = self.books[who], uuid7()
        for _ in range(2):
            self.act(
                lambda connection: adjust(
                    connection,
                    adjustment_id=adjustment_id,
                    tenant_id=books.customer.tenant_id,
                    amount=sign * amount,
                    reason="r",
                    created_by="t",
                )
            )
        theirs = "credit" if books.prepaid else "receivable"
        if sign > 0:
            books.move("revenue", theirs, amount)
            return
        paid = min(amount, books.free) if books.prepaid else amount
        books.move(theirs, "revenue", paid)
        books.move("uncollectible", "revenue", amount - paid)

    @rule(exact=amounts, cents=st.integers(-3, 3), paid=st.integers(0, 3))
    def invoice(self, exact: int, cents: int, paid: int) -> None:
        books, source = self.books[1], uuid7()
        self.post(books, "invoice", "invoiced", "receivable", exact, source)
        if cents > 0:
            self.post(books, "rounding", "invoiced", "rounding", cents, source)
        elif -exact < cents < 0:
            self.post(books, "rounding", "rounding", "invoiced", -cents, source)
        due = exact + (cents if cents > -exact else 0)
        if paid == 1:
            self.post(books, "payment", "cash", "invoiced", due, uuid7())
        elif paid == 2:
            self.post(books, "write_off", "uncollectible", "invoiced", due, source)
        elif paid == 3:
            self.post(books, "credit_note", "receivable", "invoiced", exact, uuid7())

    @precondition(lambda self: self.books[0].lots)
    @rule(pick=st.integers(0, 9), amount=amounts, kind=st.sampled_from(["refund", "clawback"]))
    def take_back(self, pick: int, amount: int, kind: Any) -> None:
        books, source = self.books[0], uuid7()
        lot_id = list(books.lots)[pick % len(books.lots)]
        if kind == "clawback":
            self.post(books, "dispute", "disputed", "cash", amount, source)
        taken = self.act(
            lambda connection: credits.debit_lot(
                connection, lot_id=lot_id, amount=amount, kind=kind, source_id=source
            )
        )
        assert 0 <= taken <= min(amount, books.free, books.lots[lot_id])
        books.move("credit", "cash" if kind == "refund" else "disputed", taken)
        if kind == "clawback" and amount > taken:
            self.post(books, "dispute_lost", "dispute_losses", "disputed", amount - taken, source)

    @rule(amount=amounts)
    def spend_more_than_there_is(self, amount: int) -> None:
        books = self.books[0]
        too_much = books.free + amount
        try:
            self.act(
                lambda connection: book(
                    connection, "commit", books.customer.tenant_id, "credit", "revenue", too_much, uuid7()
                )
            )
        except Conflict:
            return
        raise AssertionError("credit that is not there, or is held, was spent")

    @rule()
    def seal(self) -> None:
        self.act(seal)

    @invariant()
    def every_account_agrees(self) -> None:
        for books in self.books:
            rows = self.call(
                "SELECT code, debit - credit AS net FROM ledger_balances WHERE tenant_id = $1",
                books.customer.tenant_id,
            )
            shown = {row["code"]: int(row["net"]) for row in rows if row["net"]}
            assert shown == {code: net for code, net in books.accounts.items() if net}
            (row,) = self.call(
                "SELECT balance, owed FROM billing_accounts WHERE tenant_id = $1", books.customer.tenant_id
            )
            assert row["balance"] == books.balance
            assert row["owed"] == books.accounts["receivable"]

    def teardown(self) -> None:
        assert self.act(verify).problems == []


@pytest.mark.promise(2)
def test_the_ledger_follows_the_model(pg_url: str) -> None:
    play(LedgerMachine, pg_url, examples=20, steps=25)
