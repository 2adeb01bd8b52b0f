"""Stripe's operations that Penstock uses, over the official package. Structs in and out.

The account's HTTP calls, retries and errors are in stripe_transport.py.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from billing.payments import stripe_parsing as parse
from billing.payments.stripe_transport import StripeTransport
from billing.payments.stripe_types import (
    BalanceTransaction,
    Card,
    CheckoutSession,
    CreditNote,
    Customer,
    Dispute,
    Event,
    Invoice,
    InvoiceLine,
    InvoicePayment,
    MeterEventSummary,
    PaymentIntent,
    Refund,
    parse_event,
)
from core.errors import NotFound, Unavailable
from core.settings import Settings

Params = dict[str, Any]

MAX_METER_EVENTS = 100
"""Events of one call of the meter event stream (Stripe's limit)."""
_PAYMENT = ["latest_charge.balance_transaction"]
_REFUND = ["balance_transaction"]


class StripeGateway(StripeTransport):
    """Stripe's API as Penstock uses it, one method per operation: structs in and out.

    A `key` argument is the write's idempotency key, which the caller derives from our ids. Amounts are cents, instants
    Unix seconds. Every method raises as stripe_transport.py says.
    """

    # Customers and payment methods

    async def create_customer(self, name: str, metadata: dict[str, str], key: str) -> Customer:
        """Create a customer."""
        made = await self._request(
            self._client().v1.customers.create_async, {"name": name, "metadata": metadata}, key=key
        )
        return parse.customer(made)

    async def customer(self, customer_id: str) -> Customer:
        """A customer, also a deleted one."""
        return parse.customer(await self._request(self._client().v1.customers.retrieve_async, customer_id))

    async def customers_since(self, created_at: int) -> list[Customer]:
        """Customers created at or after the instant."""
        rows = await self._list(self._client().v1.customers.list_async, created={"gte": created_at})
        return [parse.customer(row) for row in rows]

    async def update_customer(self, customer_id: str, params: Params) -> Customer:
        """Change a customer's fields. Idempotent without a key."""
        return parse.customer(
            await self._request(self._client().v1.customers.update_async, customer_id, params)
        )

    async def add_tax_id(self, customer_id: str, kind: str, value: str, key: str) -> str:
        """Add a tax id such as ("eu_vat", "DE123456789"); returns its Stripe id."""
        params = {"type": kind, "value": value}
        made = await self._request(
            self._client().v1.customers.tax_ids.create_async, customer_id, params, key=key
        )
        return str(made["id"])

    async def tax_ids(self, customer_id: str) -> list[tuple[str, str, str]]:
        """(id, kind, value) of a customer's tax ids."""
        rows = await self._list(self._client().v1.customers.tax_ids.list_async, customer_id)
        return [(row["id"], row["type"], row["value"]) for row in rows]

    async def remove_tax_id(self, customer_id: str, tax_id: str) -> None:
        """Remove a tax id, if it exists."""
        try:
            await self._request(self._client().v1.customers.tax_ids.delete_async, customer_id, tax_id)
        except NotFound:
            return

    async def cards(self, customer_id: str) -> list[Card]:
        """Saved cards of a customer."""
        method = self._client().v1.customers.payment_methods.list_async
        return [parse.card(row) for row in await self._list(method, customer_id, type="card")]

    # Purchases

    async def create_checkout_session(self, params: Params, key: str) -> CheckoutSession:
        """Create a Checkout session: a page of Stripe on which the customer pays."""
        return parse.checkout_session(
            await self._request(self._client().v1.checkout.sessions.create_async, params, key=key)
        )

    async def checkout_session(self, session_id: str) -> CheckoutSession:
        """A Checkout session."""
        return parse.checkout_session(
            await self._request(self._client().v1.checkout.sessions.retrieve_async, session_id)
        )

    async def checkout_sessions_since(self, customer_id: str, created_at: int) -> list[CheckoutSession]:
        """A customer's Checkout sessions created at or after the instant."""
        rows = await self._list(
            self._client().v1.checkout.sessions.list_async, customer=customer_id, created={"gte": created_at}
        )
        return [parse.checkout_session(row) for row in rows]

    async def charge_off_session(
        self, customer_id: str, method_id: str, cents: int, metadata: dict[str, str], key: str
    ) -> PaymentIntent:
        """Charge a saved card off-session. Raises PaymentRequired when the card is declined."""
        params = {
            "amount": cents,
            "currency": "usd",
            "customer": customer_id,
            "payment_method": method_id,
            "off_session": True,
            "confirm": True,
            "metadata": metadata,
            "expand": _PAYMENT,
        }
        return parse.payment_intent(
            await self._request(self._client().v1.payment_intents.create_async, params, key=key)
        )

    async def payment_intent(self, payment_intent: str) -> PaymentIntent:
        """A payment intent with its charge and balance transaction."""
        method = self._client().v1.payment_intents.retrieve_async
        return parse.payment_intent(await self._request(method, payment_intent, {"expand": _PAYMENT}))

    async def payment_intents_since(self, customer_id: str, created_at: int) -> list[PaymentIntent]:
        """A customer's payment intents created at or after the instant, without charges."""
        method = self._client().v1.payment_intents.list_async
        rows = await self._list(method, customer=customer_id, created={"gte": created_at})
        return [parse.payment_intent(row) for row in rows]

    async def cancel_payment_intent(self, payment_intent: str, key: str) -> PaymentIntent:
        """Cancel a payment intent, so that it can no longer succeed."""
        method = self._client().v1.payment_intents.cancel_async
        return parse.payment_intent(await self._request(method, payment_intent, {}, key=key))

    async def payment_intent_of_charge(self, charge_id: str) -> str | None:
        """The payment intent of a charge; None for a charge without one."""
        found = await self._request(self._client().v1.charges.retrieve_async, charge_id)
        value = found.get("payment_intent")
        return value if isinstance(value, str) or value is None else str(value["id"])

    # Refunds and disputes

    async def create_refund(
        self, payment_intent: str, cents: int, metadata: dict[str, str], key: str
    ) -> Refund:
        """Refund `cents` of a payment."""
        params = {
            "payment_intent": payment_intent,
            "amount": cents,
            "metadata": metadata,
            "expand": _REFUND,
        }
        return parse.refund(await self._request(self._client().v1.refunds.create_async, params, key=key))

    async def refund(self, refund_id: str) -> Refund:
        """A refund with its balance transactions."""
        raw = await self._request(self._client().v1.refunds.retrieve_async, refund_id, {"expand": _REFUND})
        failure = raw.get("failure_balance_transaction")
        if isinstance(failure, str):
            method = self._client().v1.balance_transactions.retrieve_async
            raw["failure_balance_transaction"] = await self._request(method, failure)
        return parse.refund(raw)

    async def refunds_of(self, payment_intent: str) -> list[Refund]:
        """All refunds of a payment, without balance transactions."""
        method = self._client().v1.refunds.list_async
        return [parse.refund(row) for row in await self._list(method, payment_intent=payment_intent)]

    async def dispute(self, dispute_id: str) -> Dispute:
        """A dispute."""
        return parse.dispute(await self._request(self._client().v1.disputes.retrieve_async, dispute_id))

    # Invoices and credit notes

    async def create_invoice(self, params: Params, key: str) -> Invoice:
        """Create a draft invoice."""
        return parse.invoice(await self._request(self._client().v1.invoices.create_async, params, key=key))

    async def invoice(self, invoice_id: str) -> Invoice:
        """An invoice."""
        return parse.invoice(await self._request(self._client().v1.invoices.retrieve_async, invoice_id))

    async def invoices(self, customer_id: str, created_at: int) -> list[Invoice]:
        """A customer's invoices created at or after the instant."""
        method = self._client().v1.invoices.list_async
        rows = await self._list(method, customer=customer_id, created={"gte": created_at})
        return [parse.invoice(row) for row in rows]

    async def add_lines(self, invoice_id: str, lines: Sequence[Params], key: str) -> None:
        """Add up to 250 lines to a draft; each becomes an invoice item."""
        method = self._client().v1.invoices.add_lines_async
        await self._request(method, invoice_id, {"lines": list(lines)}, key=key)

    async def invoice_lines(self, invoice_id: str) -> list[InvoiceLine]:
        """All lines of an invoice."""
        method = self._client().v1.invoices.line_items.list_async
        return [parse.invoice_line(row) for row in await self._list(method, invoice_id)]

    async def finalize_invoice(self, invoice_id: str, key: str, *, collect: bool) -> Invoice:
        """Finalise a draft: it becomes open and can no longer be changed. `collect`: Stripe collects its payment."""
        method = self._client().v1.invoices.finalize_invoice_async
        return parse.invoice(await self._request(method, invoice_id, {"auto_advance": collect}, key=key))

    async def send_invoice(self, invoice_id: str, key: str) -> Invoice:
        """Mail an open invoice to the customer."""
        method = self._client().v1.invoices.send_invoice_async
        return parse.invoice(await self._request(method, invoice_id, {}, key=key))

    async def void_invoice(self, invoice_id: str, key: str) -> Invoice:
        """Void an open invoice."""
        method = self._client().v1.invoices.void_invoice_async
        return parse.invoice(await self._request(method, invoice_id, {}, key=key))

    async def write_off_invoice(self, invoice_id: str, key: str) -> Invoice:
        """Mark an open invoice as uncollectible."""
        method = self._client().v1.invoices.mark_uncollectible_async
        return parse.invoice(await self._request(method, invoice_id, {}, key=key))

    async def invoice_payments(
        self, *, invoice_id: str = "", payment_intent: str = ""
    ) -> list[tuple[str, InvoicePayment]]:
        """(invoice id, payment) pairs of an invoice, or of a payment intent."""
        by: Params = {"invoice": invoice_id}
        if payment_intent:
            by = {"payment": {"type": "payment_intent", "payment_intent": payment_intent}}
        rows = await self._list(self._client().v1.invoice_payments.list_async, **by)
        return [parse.invoice_payment(row) for row in rows]

    async def invoice_of_payment(self, invoice_payment: str) -> str:
        """The id of the invoice of an invoice payment."""
        method = self._client().v1.invoice_payments.retrieve_async
        return parse.invoice_payment(await self._request(method, invoice_payment))[0]

    async def create_credit_note(self, params: Params, key: str) -> CreditNote:
        """Create a credit note on an open or paid invoice."""
        return parse.credit_note(
            await self._request(self._client().v1.credit_notes.create_async, params, key=key)
        )

    async def credit_note(self, credit_note_id: str) -> CreditNote:
        """A credit note."""
        return parse.credit_note(
            await self._request(self._client().v1.credit_notes.retrieve_async, credit_note_id)
        )

    async def credit_notes(self, invoice_id: str) -> list[CreditNote]:
        """All credit notes of an invoice."""
        method = self._client().v1.credit_notes.list_async
        return [parse.credit_note(row) for row in await self._list(method, invoice=invoice_id)]

    # Events and balance transactions

    async def events(
        self, since_at: int, before_at: int | None = None, *, at_most: int = 100_000
    ) -> list[Event]:
        """Events of [since_at, before_at), oldest first; Stripe keeps them for 30 days.

        Raises TooManyRows when there are more than about `at_most`.
        """
        created = {"gte": since_at} | ({} if before_at is None else {"lt": before_at})
        rows = await self._list(self._client().v1.events.list_async, at_most=at_most, created=created)
        found = [event for row in reversed(rows) if (event := parse_event(row)) is not None]
        return sorted(found, key=lambda event: event.created_at)

    async def balance_transactions(self, start_at: int, end_at: int) -> list[BalanceTransaction]:
        """Balance transactions of our account in [start_at, end_at)."""
        method = self._client().v1.balance_transactions.list_async
        rows = await self._list(method, created={"gte": start_at, "lt": end_at})
        return [parse.balance_transaction(row) for row in rows]

    # The billing meter

    async def ensure_meter(self, event_name: str) -> str:
        """The id of our active meter, created when there is none; it sums `value` by `stripe_customer_id`."""
        meters = self._client().v1.billing.meters
        for row in await self._list(meters.list_async, status="active"):
            if row["event_name"] == event_name:
                return str(row["id"])
        params = {
            "display_name": "Tokens",
            "event_name": event_name,
            "default_aggregation": {"formula": "sum"},
            "customer_mapping": {"type": "by_id", "event_payload_key": "stripe_customer_id"},
            "value_settings": {"event_payload_key": "value"},
        }
        return str(
            (await self._request(meters.create_async, params, key=f"penstock-meter-{event_name}"))["id"]
        )

    async def send_meter_events(self, events: Sequence[Params]) -> None:
        """Send up to MAX_METER_EVENTS events by the meter event stream; Stripe drops repeated identifiers for 24 h."""
        client = self._client()
        opened = await self._request(client.v2.billing.meter_event_session.create_async)
        stream = self._client(str(opened["authentication_token"])).v2.billing.meter_event_stream
        batch: Any = {"events": list(events)}
        await self._call(lambda: stream.create_async(batch))

    async def meter_event_summaries(
        self, meter_id: str, customer_id: str, start_at: int, end_at: int, *, hourly: bool = False
    ) -> list[MeterEventSummary]:
        """The meter's sums for a customer in [start_at, end_at), whole hours; one row, or one per hour if `hourly`."""
        params: Params = {"customer": customer_id, "start_time": start_at, "end_time": end_at}
        if hourly:
            params["value_grouping_window"] = "hour"
        rows = await self._list(
            self._client().v1.billing.meters.event_summaries.list_async, meter_id, **params
        )
        return [
            MeterEventSummary(row["start_time"], row["end_time"], round(row["aggregated_value"]))
            for row in rows
        ]


@asynccontextmanager
async def open_gateway(settings: Settings) -> AsyncIterator[StripeGateway]:
    """A gateway by the settings' key and URL, closed at the end. Raises Unavailable without a key."""
    key = settings.stripe_api_key.get_secret_value()
    if not key:
        raise Unavailable(
            "no payments here: STRIPE_API_KEY is not set and no local Stripe runs", code="payments_off"
        )
    gateway = StripeGateway(key, settings.stripe_base_url)
    try:
        yield gateway
    finally:
        await gateway.close()
