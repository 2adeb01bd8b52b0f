"""Synchronisation with Stripe against a sequential model: lost, repeated and late events do not change the books."""

from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import verification
from billing.payments import events, refund_requests, topups
from billing.payments.stripe_gateway import StripeGateway
from core.errors import Conflict, Unavailable
from core.ids import uuid7
from tests.integration.billing.books import BooksMachine, play
from tests.integration.billing.payments.support import RETURN_URL, books, drain, prepaid, send, spend
from tests.support.stripe_sim import FakeStripe, running, stripe_balance_cents

pick = st.integers(0, 50)


class SyncMachine(BooksMachine):
    """One prepaid customer with purchases, usage, disputes and refunds over an unreliable network.

    The model only adds and subtracts: a purchase is credit once, a refund and a lost dispute take it once.
    """

    fake: FakeStripe

    def __init__(self) -> None:
        super().__init__()
        self.fake.control("POST", "/reset")
        self.gateway = StripeGateway(
            self.fake.api_key, self.fake.url, timeout_s=5.0, max_retries=0, max_wait_s=2.0
        )
        self.tenant_id: UUID = self.wait(prepaid(self.database, f"Acme {uuid7()}"))
        self.good: list[str] = []
        self.charged_back: set[str] = set()
        """Purchases that were disputed and won: Stripe refunds them no more, and the credit comes back."""
        self.credit = self.bought = self.spent = self.refunded = self.lost = 0
        self.disputes: dict[str, tuple[str, int]] = {}

    @rule(cents=st.integers(500, 9000), disputed=st.booleans())
    def buy(self, cents: int, disputed: bool) -> None:
        started = self.wait(
            topups.start_topup(
                self.database,
                self.gateway,
                tenant_id=self.tenant_id,
                cents=cents,
                return_url=RETURN_URL,
                by="t",
            )
        )
        card = "pm_card_createDispute" if disputed else "pm_card_visa"
        session_id = started.url.rsplit("/", 1)[1]
        self.fake.pay(session_id, card)
        intent = self.wait(self.gateway.checkout_session(session_id)).payment_intent
        assert intent is not None
        self.bought += cents
        if disputed:
            found = self.fake.client().v1.disputes.list({"payment_intent": intent}).data[0]
            self.disputes[found.id] = (intent, cents)
        else:
            self.good.append(intent)
            self.credit += cents

    @rule(cents=st.integers(1, 3000))
    def use(self, cents: int) -> None:
        """Use available credit; a dispute may have taken some of it back."""
        self.everything_arrives()
        cents = min(cents, self.credit)
        if cents:
            self.wait(spend(self.database, self.tenant_id, cents))
            self.spent += cents
            self.credit -= cents

    @precondition(lambda self: self.good)
    @rule(pick=pick, cents=st.integers(1, 4000))
    def refund(self, pick: int, cents: int) -> None:
        """Request a refund twice: it is booked once, or refused when the purchase is used up."""
        self.everything_arrives()
        refund_id, intent = uuid7(), self.good[pick % len(self.good)]
        try:
            for _ in range(2):
                self.act(
                    lambda connection: refund_requests.request_refund(
                        connection,
                        refund_id=refund_id,
                        tenant_id=self.tenant_id,
                        payment_intent=intent,
                        cents=cents,
                        reason="r",
                        by="t",
                    )
                )
        except Conflict:
            return
        if intent not in self.charged_back:
            self.credit -= cents
            self.refunded += cents

    @precondition(lambda self: self.disputes)
    @rule(pick=pick, won=st.booleans())
    def decide(self, pick: int, won: bool) -> None:
        dispute_id = sorted(self.disputes)[pick % len(self.disputes)]
        intent, cents = self.disputes.pop(dispute_id)
        evidence = "winning_evidence" if won else "losing_evidence"
        self.fake.client().v1.disputes.update(
            dispute_id, {"evidence": {"uncategorized_text": evidence}, "submit": True}
        )
        self.fake.advance(1)
        self.lost += 0 if won else cents
        if won:
            self.good.append(intent)
            self.charged_back.add(intent)
            self.credit += cents

    @rule(count=st.integers(1, 3), reverse=st.booleans(), drop=st.integers(0, 3))
    def webhooks(self, count: int, reverse: bool, drop: int) -> None:
        """Deliver some events by webhook, in any order, repeatedly, with gaps."""
        listed = self.wait(self.gateway.events(0))
        chosen = [one for at, one in enumerate(listed) if drop == 0 or at % (drop + 1)] * count
        for event in reversed(chosen) if reverse else chosen:
            self.act(lambda connection, event=event: events.record(connection, event, "webhook"))  # type: ignore[misc]
        self.wait(events.apply_due(self.database, self.gateway))

    @rule(kind=st.sampled_from(["429", "500", "500_after", "reset", "reset_after"]), path=st.sampled_from(
        ["/v1/refunds.*", "/v1/payment_intents.*", "/v1/disputes.*", "/v1/events"]))  # fmt: skip
    def trouble(self, kind: str, path: str) -> None:
        """Let the next call of a kind fail while the jobs run."""
        self.fake.fail(kind, path=path, times=1)
        for job in (send, drain):
            try:
                self.wait(job(self.database, self.gateway))
            except Unavailable:
                continue
        self.fake.control("DELETE", "/faults")

    def everything_arrives(self) -> None:
        """Run the jobs until nothing is left to do."""
        self.act(self._due_now)
        self.wait(drain(self.database, self.gateway))
        while self.wait(send(self.database, self.gateway)):
            pass
        self.wait(drain(self.database, self.gateway))

    async def _due_now(self, connection: AsyncConnection) -> None:
        """Make delayed attempts due."""
        await connection.execute(text("UPDATE stripe_events SET next_at = now() WHERE applied_at IS NULL"))

    def teardown(self) -> None:
        try:
            self.fake.control("DELETE", "/faults")
            self.everything_arrives()
            found = self.wait(books(self.database, self.tenant_id))
            assert -found.get("credit", 0) == self.credit
            assert found.get("disputed", 0) == 0
            assert found.get("revenue", 0) == -self.spent
            moved = (
                self.bought - self.refunded - self.lost - sum(cents for _, cents in self.disputes.values())
            )
            assert found.get("cash", 0) == moved - found.get("fees", 0)
            assert found.get("cash", 0) == self.wait(stripe_balance_cents(self.gateway))
            assert self.act(verification.verify).problems == []
        finally:
            self.wait(self.gateway.close())


@pytest.mark.promise(12, 14)
def test_the_books_follow_stripe(pg_url: str) -> None:
    with running() as fake:
        SyncMachine.fake = fake
        play(SyncMachine, pg_url, examples=8, steps=12)
