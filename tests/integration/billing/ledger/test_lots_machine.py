"""Random histories of credit lots, compared with a model that replays every event: balance, lots, draws, holds."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from sqlalchemy import text

from billing.ledger import credits
from billing.ledger.adjustments import adjust
from billing.ledger.credits import LOT_KINDS, PRIORITIES, LotKind
from billing.ledger.transfers import book
from billing.ledger.verification import verify
from core.ids import uuid7
from tests.integration.billing.books import BooksMachine, play
from tests.integration.billing.support import make_customer

FAR = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass
class Lot:
    """The model of a lot. `expires` sorts as (0, tick) once it has expired, (1, day) before, (2,) for never."""

    id: UUID
    amount: int
    remaining: int
    priority: int
    expires: tuple[int, ...]
    made: int
    ended: bool = False


@dataclass
class Model:
    """Balance, holds, lots, and the uses and endings that no allocation has seen yet."""

    balance: int = 0
    holds: dict[UUID, tuple[Any, int]] = field(default_factory=dict)
    lots: dict[UUID, Lot] = field(default_factory=dict)
    waiting: list[int | Lot] = field(default_factory=list)
    ticks: int = 0

    @property
    def held(self) -> int:
        return sum(amount for _, amount in self.holds.values())

    @property
    def free(self) -> int:
        return max(self.balance - self.held, 0)

    def use(self, amount: int) -> None:
        self.balance -= amount
        if amount:
            self.waiting.append(amount)

    def allocate(self) -> None:
        """Replay what happened since the last time, event by event."""
        for event in self.waiting:
            if isinstance(event, Lot):
                event.ended = True
                continue
            for lot in sorted(
                self.lots.values(), key=lambda one: (one.ended, one.priority, one.expires, one.made)
            ):
                taken = min(event, lot.remaining)
                lot.remaining -= taken
                event -= taken
            assert event == 0
        self.waiting.clear()


class LotsMachine(BooksMachine):
    """Random histories of one prepaid customer's credit."""

    def __init__(self) -> None:
        super().__init__()
        self.customer = self.wait(make_customer(self.database))
        self.model = Model()
        self.clawed: dict[UUID, tuple[UUID, int]] = {}

    pick = st.integers(0, 20)

    def lot(self, pick: int) -> Lot:
        lots = list(self.model.lots.values())
        return lots[pick % len(lots)]

    @rule(
        amount=st.integers(1, 500),
        kind=st.sampled_from(LOT_KINDS),
        priority=st.none() | st.integers(0, 3),
        days=st.none() | st.integers(1, 3),
    )
    def give(self, amount: int, kind: LotKind, priority: int | None, days: int | None) -> None:
        self.model.allocate()
        lot_id = uuid7()
        for again in (False, True):
            made = self.act(
                lambda connection: credits.add_lot(
                    connection,
                    lot_id=lot_id,
                    tenant_id=self.customer.tenant_id,
                    amount=amount,
                    kind=kind,
                    reason="r",
                    created_by="t",
                    expires_at=None if days is None else FAR + timedelta(days=days),
                    priority=priority,
                )
            )
            assert made == (not again)
        order = PRIORITIES[kind] if priority is None else priority
        self.model.ticks += 1
        expires = (2,) if days is None else (1, days)
        self.model.lots[lot_id] = Lot(lot_id, amount, amount, order, expires, self.model.ticks)
        self.model.balance += amount

    @rule(tokens=st.integers(1, 300))
    def begin_request(self, tokens: int) -> None:
        request = self.hold(self.customer, tokens)
        assert (request is not None) == (tokens <= self.model.balance - self.model.held)
        if request is not None:
            self.model.holds[request[0]] = (request[1], tokens)

    @precondition(lambda self: self.model.holds)
    @rule(pick=pick, tokens=st.integers(0, 400))
    def end_request(self, pick: int, tokens: int) -> None:
        model = self.model
        request_id = list(model.holds)[pick % len(model.holds)]
        admitted_at, held = model.holds.pop(request_id)
        self.settle(self.customer, (request_id, admitted_at), tokens)
        model.use(tokens if tokens <= held else min(tokens, held + max(model.balance - held - model.held, 0)))

    @rule(amount=st.integers(1, 200))
    def charge(self, amount: int) -> None:
        self.act(
            lambda connection: adjust(
                connection,
                adjustment_id=uuid7(),
                tenant_id=self.customer.tenant_id,
                amount=-amount,
                reason="r",
                created_by="t",
            )
        )
        self.model.use(min(amount, self.model.free))

    @precondition(lambda self: self.model.lots)
    @rule(pick=pick)
    def time_passes(self, pick: int) -> None:
        lot = self.lot(pick)
        if lot.expires[0] == 0 or not lot.remaining:
            return

        async def end() -> None:
            async with self.database.engine.begin() as owner:
                await owner.execute(
                    text("UPDATE credit_grants SET expires_at = clock_timestamp() WHERE id = :id"),
                    {"id": lot.id},
                )

        self.wait(end())
        self.model.ticks += 1
        lot.expires = (0, self.model.ticks)
        self.model.waiting.append(lot)

    @rule()
    def allocate(self) -> None:
        self.act(lambda connection: credits.allocate(connection, self.customer.tenant_id))
        self.model.allocate()
        assert sum(lot.remaining for lot in self.model.lots.values()) == self.model.balance

    @rule(again=st.booleans())
    def expire(self, again: bool) -> None:
        model = self.model
        model.allocate()
        expected = 0
        for lot in sorted(model.lots.values(), key=lambda one: one.expires):
            if lot.ended:
                gone = min(lot.remaining, model.free)
                lot.remaining -= gone
                model.balance -= gone
                expected += gone
        if again:
            self.wait(credits.expire_all(self.database))
            expected = 0
        assert self.act(lambda connection: credits.expire(connection, self.customer.tenant_id)) == expected

    @precondition(lambda self: self.model.lots)
    @rule(pick=pick, amount=st.none() | st.integers(0, 300), kind=st.sampled_from(["refund", "clawback"]))
    def take_back(self, pick: int, amount: int | None, kind: Any) -> None:
        lot, source_id = self.lot(pick), uuid7()
        self.model.allocate()
        expected = min(lot.remaining, self.model.free, 10**9 if amount is None else amount)
        for _ in range(2):
            taken = self.act(
                lambda connection: credits.debit_lot(
                    connection, lot_id=lot.id, amount=amount, kind=kind, source_id=source_id
                )
            )
            assert taken == expected
        lot.remaining -= expected
        self.model.balance -= expected
        if kind == "clawback":
            if expected:
                self.act(
                    lambda connection: book(
                        connection,
                        "dispute",
                        self.customer.tenant_id,
                        "disputed",
                        "cash",
                        expected,
                        source_id,
                    )
                )
            self.clawed[source_id] = (lot.id, expected)

    @precondition(lambda self: self.clawed)
    @rule(pick=pick)
    def dispute_won(self, pick: int) -> None:
        source_id = list(self.clawed)[pick % len(self.clawed)]
        lot_id, amount = self.clawed.pop(source_id)
        self.model.allocate()
        for _ in range(2):
            given = self.act(
                lambda connection: credits.reverse_clawback(connection, lot_id=lot_id, source_id=source_id)
            )
            assert given == amount
        self.model.lots[lot_id].remaining += amount
        self.model.balance += amount

    @invariant()
    def the_account_agrees(self) -> None:
        (row,) = self.call(
            "SELECT b.balance, b.held, (SELECT coalesce(sum(remaining), 0) FROM credit_grants g "
            "WHERE g.tenant_id = b.tenant_id) AS remaining FROM billing_accounts b WHERE b.tenant_id = $1",
            self.customer.tenant_id,
        )
        assert (row["balance"], row["held"]) == (self.model.balance, self.model.held)
        assert row["balance"] >= row["held"] >= 0
        assert row["remaining"] >= row["balance"]

    @invariant()
    def each_lot_agrees(self) -> None:
        rows = self.call(
            "SELECT id, remaining FROM credit_grants WHERE tenant_id = $1", self.customer.tenant_id
        )
        assert {row["id"]: row["remaining"] for row in rows} == {
            lot.id: lot.remaining for lot in self.model.lots.values()
        }

    def teardown(self) -> None:
        books = self.act(verify)
        assert books.problems == []


def test_lots_follow_the_model(pg_url: str) -> None:
    play(LotsMachine, pg_url, examples=15, steps=30)
