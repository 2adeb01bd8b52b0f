"""What we read of Stripe's objects: plain structs, amounts in integer cents. Everything else of them is ignored."""

from typing import Any

import msgspec


class Money(msgspec.Struct, frozen=True):
    """A movement of our Stripe balance (a balance transaction): net = cents - fee_cents."""

    id: str
    cents: int
    fee_cents: int
    created_at: int
    """Unix seconds."""
    type: str = ""
    source: str | None = None


class Customer(msgspec.Struct, frozen=True):
    """A customer; `tenant_id` is what our metadata says."""

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


class Session(msgspec.Struct, frozen=True):
    """A Checkout session."""

    id: str
    url: str | None
    mode: str
    status: str | None
    customer: str | None
    payment_intent: str | None
    metadata: dict[str, str]


class Payment(msgspec.Struct, frozen=True):
    """A payment intent with its last charge."""

    id: str
    status: str
    cents: int
    """What was asked for."""
    received_cents: int
    currency: str
    customer: str | None
    metadata: dict[str, str]
    payment_method: str | None
    charge_id: str | None
    money: Money | None
    """The charge's movement of our balance; Stripe may tell it a little later than the success."""
    error: str | None
    """Why the last attempt failed."""
    created_at: int


class InvoiceLine(msgspec.Struct, frozen=True):
    """A line of a Stripe invoice."""

    id: str
    cents: int
    metadata: dict[str, str]


class InvoicePayment(msgspec.Struct, frozen=True):
    """Money that paid (part of) an invoice."""

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
    """Credit notes before and after payment."""
    metadata: dict[str, str]
    paid_at: int | None
    attempts: int
    url: str | None


class CreditNote(msgspec.Struct, frozen=True):
    """A credit note; `refunds` are those it made."""

    id: str
    invoice: str
    status: str
    cents: int
    metadata: dict[str, str]
    refunds: list[str]


class Refund(msgspec.Struct, frozen=True):
    """Money that goes back to a customer."""

    id: str
    status: str
    cents: int
    payment_intent: str | None
    metadata: dict[str, str]
    money: Money | None
    failure_money: Money | None
    """The money's return to our balance when the refund failed."""
    error: str | None
    created_at: int


class Dispute(msgspec.Struct, frozen=True):
    """A chargeback, and what it moved."""

    id: str
    status: str
    cents: int
    reason: str
    payment_intent: str | None
    charge: str | None
    moves: list[Money]
    due_at: int | None
    created_at: int


class Event(msgspec.Struct, frozen=True):
    """An event: what happened to which object. What it says about the object is not used."""

    id: str
    type: str
    object_kind: str
    object_id: str
    created_at: int


class MeterSum(msgspec.Struct, frozen=True):
    """What a meter has for a customer in [start_at, end_at)."""

    start_at: int
    end_at: int
    tokens: int


def event_of(raw: dict[str, Any]) -> Event | None:
    """The event in a webhook's body or a list's row; None when it is none. Both of Stripe's shapes: with a snapshot of
    the object (`event`) and thin (`v2.core.event`)."""
    identity, kind = _name(raw, "id"), _name(raw, "type")
    if not identity or not kind:
        return None
    created: Any = raw.get("created")
    if raw.get("object") == "v2.core.event":
        related = raw.get("related_object") or {}
        return Event(identity, kind, _name(related, "type"), _name(related, "id"), 0)
    data = raw.get("data")
    found = data.get("object") if isinstance(data, dict) else None
    if not isinstance(found, dict) or type(created) is not int or not 0 <= created < 2**37:
        return None
    return Event(identity, kind, _name(found, "object"), _name(found, "id"), created)


def _name(found: Any, key: str) -> str:
    """A short printable text under `key`; empty when there is none."""
    value = found.get(key) if isinstance(found, dict) else None
    good = isinstance(value, str) and 0 < len(value) <= 255 and value.isprintable()
    return str(value) if good else ""
