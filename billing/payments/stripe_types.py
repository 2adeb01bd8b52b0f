"""The fields of Stripe's objects that we read, as structs. Amounts are integer cents, instants Unix seconds."""

from typing import Any

import msgspec


class BalanceTransaction(msgspec.Struct, frozen=True):
    """A balance transaction of our account; its net amount is `cents` - `fee_cents`."""

    id: str
    cents: int
    fee_cents: int
    created_at: int
    type: str = ""
    source: str | None = None


class Customer(msgspec.Struct, frozen=True):
    """A customer."""

    id: str
    metadata: dict[str, str]
    default_payment_method: str | None
    deleted: bool


class Card(msgspec.Struct, frozen=True):
    """A saved payment method."""

    id: str
    kind: str
    brand: str | None
    last4: str | None
    exp_month: int | None
    exp_year: int | None
    customer: str | None


class CheckoutSession(msgspec.Struct, frozen=True):
    """A Checkout session."""

    id: str
    url: str | None
    mode: str
    status: str | None
    customer: str | None
    payment_intent: str | None
    metadata: dict[str, str]


class PaymentIntent(msgspec.Struct, frozen=True):
    """A payment intent with its latest charge."""

    id: str
    status: str
    cents: int
    """The amount to collect."""
    received_cents: int
    currency: str
    customer: str | None
    metadata: dict[str, str]
    payment_method: str | None
    charge_id: str | None
    balance_transaction: BalanceTransaction | None
    """The charge's balance transaction, which Stripe may add a little later than the success."""
    error: str | None
    """Why the latest attempt failed."""
    created_at: int


class InvoiceLine(msgspec.Struct, frozen=True):
    """A line of a Stripe invoice."""

    id: str
    cents: int
    metadata: dict[str, str]


class InvoicePayment(msgspec.Struct, frozen=True):
    """A payment of an invoice or of a part of it."""

    id: str
    status: str
    paid_cents: int
    payment_intent: str | None


class Invoice(msgspec.Struct, frozen=True):
    """An invoice without its lines."""

    id: str
    status: str | None
    customer: str | None
    currency: str
    number: str | None
    total_cents: int
    paid_cents: int
    remaining_cents: int
    credited_cents: int
    """By credit notes before and after payment."""
    applied_cents: int
    """Taken from the customer's balance when it was finalised; below 0, an earlier debt that was added."""
    mailed: bool
    """Whether it is sent to be paid by its due date; otherwise a saved card is charged."""
    metadata: dict[str, str]
    paid_at: int | None
    attempts: int
    url: str | None


class CreditNote(msgspec.Struct, frozen=True):
    """A credit note; `refunds` are the ids of the refunds that it made."""

    id: str
    invoice: str
    status: str
    cents: int
    after_payment_cents: int
    """The part that was paid already: refunded, or left on the customer's balance."""
    refunded_cents: int
    metadata: dict[str, str]
    refunds: list[str]


class Refund(msgspec.Struct, frozen=True):
    """A refund."""

    id: str
    status: str
    cents: int
    payment_intent: str | None
    metadata: dict[str, str]
    balance_transaction: BalanceTransaction | None
    failure_balance_transaction: BalanceTransaction | None
    """The balance transaction that returns the money after the refund failed."""
    error: str | None
    created_at: int


class Dispute(msgspec.Struct, frozen=True):
    """A dispute (chargeback) with its balance transactions."""

    id: str
    status: str
    cents: int
    reason: str
    payment_intent: str | None
    charge: str | None
    balance_transactions: list[BalanceTransaction]
    due_at: int | None
    created_at: int


class Event(msgspec.Struct, frozen=True):
    """An event with the kind and id of its object; the object's snapshot in it is not used."""

    id: str
    type: str
    object_kind: str
    object_id: str
    created_at: int


class MeterEventSummary(msgspec.Struct, frozen=True):
    """A meter's sum for a customer in [start_at, end_at)."""

    start_at: int
    end_at: int
    tokens: int


def parse_event(raw: dict[str, Any]) -> Event | None:
    """The event of a webhook's body or of a list's row; None when it is not a valid event.

    Accepts events with a snapshot of the object (`event`) and thin ones (`v2.core.event`).
    """
    event_id, kind = _short_text(raw, "id"), _short_text(raw, "type")
    if not event_id or not kind:
        return None
    created: Any = raw.get("created")
    if raw.get("object") == "v2.core.event":
        related = raw.get("related_object") or {}
        return Event(event_id, kind, _short_text(related, "type"), _short_text(related, "id"), 0)
    data = raw.get("data")
    found = data.get("object") if isinstance(data, dict) else None
    if not isinstance(found, dict) or type(created) is not int or not 0 <= created < 2**37:
        return None
    return Event(event_id, kind, _short_text(found, "object"), _short_text(found, "id"), created)


def _short_text(found: Any, key: str) -> str:
    """The printable text of 1 to 255 characters under `key`, else an empty one."""
    value = found.get(key) if isinstance(found, dict) else None
    good = isinstance(value, str) and 0 < len(value) <= 255 and value.isprintable()
    return str(value) if good else ""
