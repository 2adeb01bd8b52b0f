"""Buying credit: Stripe's payment page, the saved card, automatic top-up, and the tax id on invoices."""

import asyncio
from uuid import UUID

from nicegui import ui

from admin import payments as admin_payments
from billing.payments.auto_topup_rules import AutoTopupRule
from billing.payments.stripe_gateway import open_gateway
from billing.payments.views import CustomerView, TopupView
from console.components.base import badge, box, card, description_list, notice
from console.components.dialogs import confirm, form_dialog, primary, secondary, text_input
from console.deps import Console
from console.format import moment, money
from console.panels.amounts import parse_usd
from console.viewer import Viewer, toast_ok
from core.ids import uuid7

DUNNING = {"current": ("Current", "ok"), "past_due": ("Past due", "warn"), "suspended": ("Suspended", "bad")}
TAX_KINDS = {
    "eu_vat": "EU VAT",
    "gb_vat": "UK VAT",
    "us_ein": "US EIN",
    "ch_vat": "Swiss VAT",
    "ca_bn": "Canada BN",
    "au_abn": "Australia ABN",
    "in_gst": "India GST",
    "jp_cn": "Japan corporate number",
}


class TopupPanel:
    """The ways to buy credit; owners may use them, other roles read them."""

    def __init__(self, console: Console, viewer: Viewer, tenant_id: UUID, return_to: str) -> None:
        self.console = console
        self.viewer = viewer
        self.tenant_id = tenant_id
        self.return_to = return_to
        """Address of this page, to which Stripe's payment page returns."""
        self.may_pay = viewer.role == "tenant_owner"
        self.ready = bool(console.settings.stripe_api_key.get_secret_value())
        self.customer: CustomerView | None = None
        self.rule: AutoTopupRule | None = None
        self.place: ui.element

    async def draw(self) -> None:
        """Create both cards."""
        await self._read()
        self.place = box("div", "grid two")
        self._show()

    async def _read(self) -> None:
        database, actor = self.console.database, self.viewer.actor
        customers, self.rule = await asyncio.gather(
            admin_payments.list_customers(database, actor, tenant_id=self.tenant_id),
            admin_payments.get_auto_topup(database, actor, tenant_id=self.tenant_id),
        )
        self.customer = customers[0] if customers else None

    async def reload(self) -> None:
        """Read and show the present state."""
        await self._read()
        self.place.clear()
        self._show()

    def _show(self) -> None:
        with self.place:
            self._payment_card()
            self._auto_card()

    def _payment_card(self) -> None:
        acts = self.may_pay and self.ready
        with card("Payment", "Credit is bought at Stripe's page; the card stays with Stripe.") as actions:
            if acts:
                with actions:
                    primary("Buy credit", self.viewer.act(self.buy), icon="add_card")
            known = self.customer
            description_list(
                [
                    (
                        "Saved card",
                        known.card if known and known.card else "None yet: the first purchase saves it",
                    ),
                    ("Tax id", known.tax_id if known and known.tax_id else "None"),
                ]
            )
            if known is not None and known.dunning != "current":
                word, tone = DUNNING.get(known.dunning, (known.dunning, "warn"))
                with box("div", "row-line"):
                    badge(word, tone, "an invoice is not paid")
            if not self.ready:
                notice("info", "Payments are not set up here", "Ask the platform's people to add credit.")
            elif acts:
                with box("div", "actions"):
                    secondary("Set tax id", self.viewer.act(self.set_tax_id), icon="badge")

    def _auto_card(self) -> None:
        rule = self.rule
        with card("Automatic top-up", "The saved card is charged when credit runs low.") as actions:
            if self.may_pay and self.ready:
                with actions:
                    secondary(
                        "Change" if rule else "Set up", self.viewer.act(self.set_auto), icon="autorenew"
                    )
                    if rule is not None and rule.enabled:
                        secondary("Switch off", self.viewer.act(self.stop_auto), icon="pause")
            if rule is None:
                description_list([("State", "Off"), ("Needs", "A saved card and an owner who sets it up")])
                return
            with box("div", "row-line"):
                badge("On" if rule.enabled else "Off", "ok" if rule.enabled else "idle")
            description_list(
                [
                    ("When less is left than", money(rule.threshold_usd)),
                    ("Buy", money(rule.amount_usd)),
                    ("At most in a month", money(rule.monthly_cap_usd)),
                    ("Bought this month", money(rule.bought_this_month_usd)),
                ]
            )
            if rule.disabled_reason:
                notice(
                    "bad",
                    "Switched off after failures",
                    f"{rule.disabled_reason} Check the card, then set it up again.",
                )
            elif rule.failures:
                notice("warn", "The last purchase failed", f"{rule.failures} in a row; we try again later.")

    async def buy(self) -> None:
        """Open the form of a purchase; saving leads to Stripe's payment page."""
        topup_id = uuid7()

        async def save() -> bool:
            try:
                usd = parse_usd(amount.value or "")
                amount.error = None
            except ValueError as error:
                amount.error = str(error)
                return False
            async with open_gateway(self.console.settings) as gateway:
                started = await admin_payments.start_topup(
                    self.console.database,
                    self.viewer.actor,
                    gateway,
                    tenant_id=self.tenant_id,
                    amount_usd=usd,
                    return_url=f"{self.return_to}?topup={topup_id}",
                    topup_id=topup_id,
                )
            ui.navigate.to(started.url)
            return True

        with form_dialog(
            "Buy credit",
            "Go to payment",
            self.viewer,
            save,
            sub="You pay at Stripe's page and come back here. Credit can be spent as soon as the payment arrived. "
            "The card is saved there for later purchases.",
        ):
            amount = text_input("Amount in US dollars", "50", hint="From $5; tax is not included.")
            amount.props("autofocus inputmode=decimal prefix=$")

    async def set_auto(self) -> None:
        """Open the form that switches automatic top-up on: threshold, amount and monthly cap."""
        rule = self.rule

        async def save() -> bool:
            values = {}
            for name, field in fields.items():
                try:
                    values[name] = parse_usd(field.value or "")
                    field.error = None
                except ValueError as error:
                    field.error = str(error)
            if len(values) < len(fields):
                return False
            await admin_payments.set_auto_topup(
                self.console.database, self.viewer.actor, tenant_id=self.tenant_id, enabled=True, **values
            )
            toast_ok("Automatic top-up is on.")
            await self.reload()
            return True

        with form_dialog(
            "Automatic top-up",
            "Switch on",
            self.viewer,
            save,
            sub="The saved card is charged without asking again, up to the cap in each UTC month. "
            "After three failures in a row it switches itself off and tells you.",
        ):
            dollars = "inputmode=decimal prefix=$"
            fields = {
                "threshold_usd": text_input("When less is left than", rule.threshold_usd if rule else "10"),
                "amount_usd": text_input("Buy", rule.amount_usd if rule else "50", hint="From $5"),
                "monthly_cap_usd": text_input("At most in a month", rule.monthly_cap_usd if rule else "200"),
            }
            for field in fields.values():
                field.props(dollars)

    async def stop_auto(self) -> None:
        """Switch automatic top-up off; its amounts are kept."""
        rule = self.rule
        if rule is None:
            return
        answer = await confirm(
            self.viewer,
            "Switch automatic top-up off?",
            "Requests are refused when the credit is used up, until more is bought.",
            "Switch off",
            needs_reason=False,
        )
        if answer is None:
            return
        await admin_payments.set_auto_topup(
            self.console.database,
            self.viewer.actor,
            tenant_id=self.tenant_id,
            enabled=False,
            threshold_usd=rule.threshold_usd,
            amount_usd=rule.amount_usd,
            monthly_cap_usd=rule.monthly_cap_usd,
        )
        toast_ok("Automatic top-up is off.")
        await self.reload()

    async def set_tax_id(self) -> None:
        """Open the form of the tax id that invoices carry."""

        async def save() -> bool:
            value.error = None if (value.value or "").strip() else "The number as your authority writes it."
            if value.error:
                return False
            async with open_gateway(self.console.settings) as gateway:
                await admin_payments.set_tax_id(
                    self.console.database,
                    self.viewer.actor,
                    gateway,
                    tenant_id=self.tenant_id,
                    kind=kind.value,
                    value=value.value.strip(),
                )
            toast_ok("The tax id is set; it stands on invoices from now on.")
            await self.reload()
            return True

        with form_dialog("Tax id", "Set tax id", self.viewer, save, sub="It stands on your invoices."):
            kind = ui.select(TAX_KINDS, value="eu_vat", label="Kind").props("outlined dense")
            value = text_input("Number").props("autofocus maxlength=50")


class TopupResult:
    """The state of a purchase after the return from Stripe's payment page."""

    def __init__(self, console: Console, viewer: Viewer, tenant_id: UUID, topup_id: UUID) -> None:
        self.console = console
        self.viewer = viewer
        self.tenant_id = tenant_id
        self.topup_id = topup_id
        self.status = ""
        self.place: ui.element

    async def draw(self) -> None:
        """Show the purchase's state, and poll while it is pending."""
        self.place = box("div", "stack")
        await self.poll()
        if self.status == "pending":
            self.timer = self.viewer.live(1.0, self.poll)

    async def poll(self) -> None:
        """Read the purchase, and show its state when it has changed."""
        found = await admin_payments.list_topups(
            self.console.database, self.viewer.actor, tenant_id=self.tenant_id
        )
        topup = next((one for one in found if one.id == self.topup_id), None)
        if topup is None or topup.status == self.status:
            return
        waited, self.status = self.status == "pending", topup.status
        self.place.clear()
        with self.place:
            self._say(topup)
        if waited and self.status != "pending":
            self.timer.deactivate()

    def _say(self, topup: TopupView) -> None:
        amount = money(topup.amount_usd).text
        if topup.status == "pending":
            begun = moment(topup.created_at, self.console.clock.now())
            notice(
                "info",
                f"Waiting for the payment of {amount}",
                f"Begun {begun.text}. The credit is here seconds after Stripe confirms; this page follows by itself.",
                topup.url or "",
                "Back to the payment page",
            )
        elif topup.status == "succeeded":
            notice("ok", f"{amount} of credit has arrived", "It can be spent now.")
        else:
            why = topup.error or "Nothing was charged."
            notice("warn", f"The purchase of {amount} is {topup.status}", f"{why} You can begin again.")
