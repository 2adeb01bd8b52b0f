"""Parses Stripe's objects, as plain dictionaries, into our structs (billing/payments/stripe_types.py)."""

from typing import Any

from billing.payments.stripe_types import (
    BalanceTransaction,
    Card,
    CheckoutSession,
    CreditNote,
    Customer,
    Dispute,
    Invoice,
    InvoiceLine,
    InvoicePayment,
    PaymentIntent,
    Refund,
)

Raw = dict[str, Any]


def id_of(value: Any) -> str | None:
    """The id of a reference, expanded or not."""
    if value is None or isinstance(value, str):
        return value or None
    return str(value["id"])


def balance_transaction(raw: Raw) -> BalanceTransaction:
    """A balance transaction."""
    return BalanceTransaction(
        id=raw["id"],
        cents=raw["amount"],
        fee_cents=raw["fee"],
        created_at=raw["created"],
        type=raw.get("type") or "",
        source=id_of(raw.get("source")),
    )


def _expanded_transaction(value: Any) -> BalanceTransaction | None:
    return balance_transaction(value) if isinstance(value, dict) else None


def _metadata(raw: Raw) -> dict[str, str]:
    return dict(raw.get("metadata") or {})


def customer(raw: Raw) -> Customer:
    """A customer."""
    return Customer(
        id=raw["id"],
        metadata=_metadata(raw),
        default_payment_method=id_of((raw.get("invoice_settings") or {}).get("default_payment_method")),
        deleted=bool(raw.get("deleted")),
    )


def card(raw: Raw) -> Card:
    """A payment method."""
    facts = raw.get("card") or {}
    return Card(
        id=raw["id"],
        kind=raw["type"],
        brand=facts.get("brand"),
        last4=facts.get("last4"),
        exp_month=facts.get("exp_month"),
        exp_year=facts.get("exp_year"),
        customer=id_of(raw.get("customer")),
    )


def checkout_session(raw: Raw) -> CheckoutSession:
    """A Checkout session."""
    return CheckoutSession(
        id=raw["id"],
        url=raw.get("url"),
        mode=raw["mode"],
        status=raw.get("status"),
        customer=id_of(raw.get("customer")),
        payment_intent=id_of(raw.get("payment_intent")),
        metadata=_metadata(raw),
    )


def payment_intent(raw: Raw) -> PaymentIntent:
    """A payment intent."""
    charge = raw.get("latest_charge")
    error = raw.get("last_payment_error") or {}
    return PaymentIntent(
        id=raw["id"],
        status=raw["status"],
        cents=raw["amount"],
        received_cents=raw.get("amount_received") or 0,
        currency=raw["currency"],
        customer=id_of(raw.get("customer")),
        metadata=_metadata(raw),
        payment_method=id_of(raw.get("payment_method")),
        charge_id=id_of(charge),
        balance_transaction=_expanded_transaction(charge.get("balance_transaction"))
        if isinstance(charge, dict)
        else None,
        error=error.get("message") or error.get("code"),
        created_at=raw["created"],
    )


def refund(raw: Raw) -> Refund:
    """A refund."""
    return Refund(
        id=raw["id"],
        status=raw.get("status") or "pending",
        cents=raw["amount"],
        payment_intent=id_of(raw.get("payment_intent")),
        metadata=_metadata(raw),
        balance_transaction=_expanded_transaction(raw.get("balance_transaction")),
        failure_balance_transaction=_expanded_transaction(raw.get("failure_balance_transaction")),
        error=raw.get("failure_reason"),
        created_at=raw["created"],
    )


def dispute(raw: Raw) -> Dispute:
    """A dispute."""
    return Dispute(
        id=raw["id"],
        status=raw["status"],
        cents=raw["amount"],
        reason=raw.get("reason") or "",
        payment_intent=id_of(raw.get("payment_intent")),
        charge=id_of(raw.get("charge")),
        balance_transactions=[balance_transaction(each) for each in raw.get("balance_transactions") or []],
        due_at=(raw.get("evidence_details") or {}).get("due_by"),
        created_at=raw["created"],
    )


def invoice(raw: Raw) -> Invoice:
    """An invoice."""
    before = raw.get("pre_payment_credit_notes_amount") or 0
    after = raw.get("post_payment_credit_notes_amount") or 0
    return Invoice(
        id=raw["id"],
        status=raw.get("status"),
        customer=id_of(raw.get("customer")),
        currency=raw["currency"],
        number=raw.get("number"),
        total_cents=raw["total"],
        paid_cents=raw.get("amount_paid") or 0,
        remaining_cents=raw.get("amount_remaining") or 0,
        credited_cents=before + after,
        applied_cents=0
        if raw.get("ending_balance") is None
        else raw["ending_balance"] - raw["starting_balance"],
        mailed=raw.get("collection_method") == "send_invoice",
        metadata=_metadata(raw),
        paid_at=(raw.get("status_transitions") or {}).get("paid_at"),
        attempts=raw.get("attempt_count") or 0,
        url=raw.get("hosted_invoice_url"),
    )


def invoice_line(raw: Raw) -> InvoiceLine:
    """A line of an invoice."""
    return InvoiceLine(id=raw["id"], cents=raw["amount"], metadata=_metadata(raw))


def invoice_payment(raw: Raw) -> tuple[str, InvoicePayment]:
    """(invoice id, its payment)."""
    found = raw.get("payment") or {}
    return str(id_of(raw["invoice"])), InvoicePayment(
        id=raw["id"],
        status=raw["status"],
        paid_cents=raw.get("amount_paid") or 0,
        payment_intent=id_of(found.get("payment_intent")),
    )


def credit_note(raw: Raw) -> CreditNote:
    """A credit note."""
    rows = raw.get("refunds") or []
    refunds = [id_of(each.get("refund")) for each in rows]
    return CreditNote(
        id=raw["id"],
        invoice=str(id_of(raw["invoice"])),
        status=raw["status"],
        cents=raw["amount"],
        after_payment_cents=raw.get("post_payment_amount") or 0,
        refunded_cents=sum(each["amount_refunded"] for each in rows),
        metadata=_metadata(raw),
        refunds=[each for each in refunds if each],
    )
