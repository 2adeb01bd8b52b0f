"""What customers, their banks and Stripe's wires do in the play."""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import date
from typing import Any
from uuid import UUID

import httpx
import pytest

from admin import payments as admin_payments
from billing.payments import auto_topup, refunds
from billing.payments.stripe_gateway import StripeGateway, open_gateway
from core.errors import Unavailable
from jobs import payments as payment_jobs
from tests.support.platform_play.stage import ANN, Stage

RETURN_URL = "http://127.0.0.1:8001/billing"


class Cards:
    """The play's payments; each is named, so that a later act finds it."""

    def __init__(self, play: Stage) -> None:
        self.play = play
        self.bought: dict[str, tuple[str, UUID, int]] = {}
        """Customer, purchase and cents by name."""
        self.disputes: dict[str, tuple[str, int]] = {}
        """Stripe's dispute and the credit that was taken back."""

    async def buy(self, who: str, name: str, usd: int) -> None:
        """A top-up at the payment page; asked for twice, clicked once."""
        play = self.play
        topup_id = play.traffic.id_at(play.time.now())
        async with open_gateway(play.settings) as gateway:
            for _ in range(2):
                started = await admin_payments.start_topup(
                    play.database, ANN, gateway, tenant_id=play.people[who].tenant_id, amount_usd=str(usd),
                    return_url=RETURN_URL, topup_id=topup_id,
                )  # fmt: skip
        answer = await asyncio.to_thread(play.stripe.pay, started.url.rsplit("/", 1)[1])
        assert answer.status_code < 400
        play.account(who).bought(name, usd * 100)
        self.bought[name] = (who, topup_id, usd * 100)

    async def intent(self, name: str) -> str:
        """Stripe's payment of a purchase."""
        topup = self.bought[name][1]
        return str(await self.play.one("SELECT payment_intent FROM stripe_topups WHERE id = :id", id=topup))

    async def refund(self, name: str, cents: int | None) -> None:
        """Pay a purchase back, asked for twice; None = all that is left."""
        who = self.bought[name][0]
        refund_id = self.play.traffic.id_at(self.play.time.now())
        back = self.play.account(who).refund(name, cents)
        for _ in range(2):
            made = await admin_payments.refund(
                self.play.database, ANN, tenant_id=self.play.people[who].tenant_id,
                payment_intent=await self.intent(name), reason="asked for", refund_id=refund_id,
                amount_usd=None if cents is None else f"{cents // 100}.{cents % 100:02d}",
            )  # fmt: skip
            assert made.amount_usd == f"{back // 100}.{back % 100:02d}"

    async def dispute(self, name: str) -> None:
        """The bank takes a purchase back."""
        who, _, paid = self.bought[name]
        intent = await asyncio.to_thread(
            self.play.stripe.client().v1.payment_intents.retrieve, await self.intent(name)
        )
        made = await asyncio.to_thread(
            self.play.stripe.control, "POST", f"/charges/{intent.latest_charge}/dispute"
        )
        self.disputes[name] = (made["id"], self.play.account(who).disputed(name, paid))

    async def decide(self, name: str, *, won: bool) -> None:
        """The bank has looked at the evidence."""
        dispute, clawed = self.disputes.pop(name)
        who, _, paid = self.bought[name]
        outcome = "won" if won else "lost"
        await asyncio.to_thread(
            self.play.stripe.control, "POST", f"/disputes/{dispute}/settle", outcome=outcome
        )
        account = self.play.account(who)
        if won:
            account.dispute_won(name, paid, clawed)
        else:
            account.dispute_lost(paid, clawed)

    async def pay_invoice(self, who: str, month: date) -> None:
        """A person pays an invoice by card at Stripe's page."""
        stripe_id = await self.play.one(
            "SELECT stripe_invoice_id FROM invoices WHERE tenant_id = :tenant AND month = :month",
            tenant=self.play.people[who].tenant_id,
            month=month,
        )
        pay = self.play.stripe.client().v1.invoices.pay
        await asyncio.to_thread(pay, stripe_id, {"payment_method": "pm_card_visa", "off_session": False})
        self.play.account(who).pay(month)

    async def forged(self) -> None:
        """Webhooks that Stripe never sent are refused and leave nothing behind."""
        before = await self.play.one("SELECT count(*) FROM stripe_events")
        body = b'{"id":"evt_forged","object":"event","type":"payment_intent.succeeded","created":1,"data":{"object":{"id":"pi_1","object":"payment_intent"}}}'  # noqa: E501
        stamp = int(self.play.time.now().timestamp())
        async with httpx.AsyncClient() as client:
            for header in ("", "t=1,v1=00", f"t={stamp},v1={'0' * 64}", "v1=abc"):
                answer = await client.post(
                    self.play.webhook, content=body, headers={"stripe-signature": header}
                )
                assert answer.status_code in (400, 401)
        assert await self.play.one("SELECT count(*) FROM stripe_events") == before

    async def lost_top_up(self, who: str) -> None:
        """Stripe charges the card and its answer never comes: nobody is charged twice."""
        play = self.play
        await self._low(who)
        await asyncio.to_thread(
            lambda: play.stripe.fail("timeout", path="/v1/payment_intents$", method="POST", times=1)
        )
        impatient = {"timeout_s": 0.5, "max_retries": 0, "max_wait_s": 0.5}
        gateway = StripeGateway(play.stripe.api_key, play.stripe.url, **impatient)  # type: ignore[arg-type]
        try:
            with contextlib.suppress(Unavailable):
                await auto_topup.run(play.database, gateway)
        finally:
            await gateway.close()
        await play.jobs()

    async def crashed_top_up(self, who: str) -> None:
        """The process dies between Stripe's answer and our commit."""
        await self._low(who)
        await _crash(
            auto_topup, "apply_update", lambda: payment_jobs.top_up(self.play.database, self.play.settings)
        )
        await self.play.jobs()

    async def _low(self, who: str) -> None:
        """Raise the customer's threshold above the credit that is left, for one purchase."""
        play = self.play
        account = play.account(who)
        _, paid = play.topups[who]
        left = (account.balance - account.held) // 10**12
        await admin_payments.set_auto_topup(
            play.database, ANN, tenant_id=play.people[who].tenant_id, enabled=True,
            threshold_usd=str(left + 1), amount_usd=str(paid // 100), monthly_cap_usd="1000",
        )  # fmt: skip
        play.topups[who] = ((left + 1) * 10**12, paid)

    async def refund_and_crash(self) -> None:
        """The same with a refund that waits in the outbox."""
        await _crash(
            refunds,
            "apply_update",
            lambda: payment_jobs.send(self.play.database, self.play.settings),
            quiet=True,
        )

    async def wires(self, mode: str, **options: Any) -> None:
        """How webhooks travel from now on."""
        await asyncio.to_thread(lambda: self.play.stripe.webhooks(mode, **options))


async def _crash(module: Any, name: str, run: Callable[[], Any], *, quiet: bool = False) -> None:
    died = []

    async def die(*_: object, **__: object) -> None:
        died.append(name)
        raise Unavailable("the process died here")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, name, die)
        if quiet:
            await run()  # the outbox notes the failure and keeps the row
        else:
            with pytest.raises(Unavailable):
                await run()
    assert died, "nothing was under way"
