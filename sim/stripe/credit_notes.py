"""Credit notes: https://docs.stripe.com/api/credit_notes. They reduce an open invoice or give back a payment."""

from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

from sim.stripe import collecting, customers, invoices, refunds
from sim.stripe.errors import Obj, StripeError, invalid, missing, state
from sim.stripe.pages import dollars
from sim.stripe.params import cents, merge_metadata
from sim.stripe.routes import route
from sim.stripe.sim import Sim
from sim.stripe.views import EMBEDDED, Page, changed, matching, page


class Plan(NamedTuple):
    """The effects of a credit note, in cents."""

    invoice: Obj
    lines: list[Obj]
    total: int
    before_payment: int
    refund: int
    credit: int
    outside: int
    linked: list[Obj]


def _plan(sim: Sim, params: Obj) -> Plan:
    """Validate the parameters against the invoice and earlier credit notes. Raises StripeError (400, 404)."""
    invoice = sim.find("invoice", params["invoice"], "invoice")
    if invoice["status"] not in ("open", "paid", "uncollectible"):
        raise state(
            f"Credit notes can only be issued for open, paid or uncollectible invoices. This invoice is"
            f" {invoice['status']}.", param="invoice",
        )  # fmt: skip
    lines = [_line(sim, invoice, line, f"lines[{at}]") for at, line in enumerate(params.get("lines") or [])]
    total = sum(line["amount"] for line in lines)
    if not lines:
        if params.get("amount") is None:
            raise missing("lines")
        total = params["amount"]
        lines = [_custom(sim, params.get("memo") or "Credit", 1, str(total))]
    elif params.get("amount") not in (None, total):
        raise invalid(f"amount must equal the sum of the lines ({total}).", param="amount")
    if total <= 0:
        raise invalid("The credit note's amount must be greater than 0.", param="amount")
    left = invoice["total"] - sum(note["total"] for note in _of(sim, invoice) if note["status"] == "issued")
    if total > left:
        raise state(
            f"The sum of credit notes ({dollars(total)}) can not exceed what is left of the invoice ({dollars(left)}).",
            param="amount",
        )
    return _split(sim, params, invoice, lines, total)


def _split(sim: Sim, params: Obj, invoice: Obj, lines: list[Obj], total: int) -> Plan:
    """Divide the amount between the open invoice, a refund, the customer's balance and payment out of band."""
    before = min(total, invoice["amount_remaining"]) if invoice["status"] != "paid" else 0
    linked = params.get("refunds") or []
    for at, each in enumerate(linked):
        if not each.get("refund"):
            raise missing(f"refunds[{at}][refund]")
        sim.find("refund", each["refund"], f"refunds[{at}][refund]")
    refund, credit = params.get("refund_amount") or 0, params.get("credit_amount") or 0
    outside = params.get("out_of_band_amount") or 0
    if min(refund, credit, outside) < 0:
        raise invalid("Amounts must not be negative.", param="refund_amount")
    tied = sum(each.get("amount_refunded") or sim.find("refund", each["refund"])["amount"] for each in linked)
    given = refund + credit + outside + tied
    if given != total - before:
        raise state(
            f"The sum of refund_amount, credit_amount, out_of_band_amount and refunds ({dollars(given)}) must equal"
            f" the part of the credit note that was paid already ({dollars(total - before)}).",
            param="credit_amount",
        )
    if refund:
        charge = collecting.charge_of(sim, invoice)
        if charge is None or charge["amount"] - charge["amount_refunded"] < refund:
            raise state("The invoice's payment can not be refunded by refund_amount.", param="refund_amount")
    return Plan(invoice, lines, total, before, refund, credit, outside, linked)


def _line(sim: Sim, invoice: Obj, given: Obj, at: str) -> Obj:
    if given["type"] == "custom_line_item":
        unit = given.get("unit_amount_decimal", given.get("unit_amount"))
        if unit is None:
            raise missing(f"{at}[unit_amount]")
        return _custom(sim, given.get("description"), given.get("quantity", 1), str(unit))
    id = given.get("invoice_line_item") or ""
    if id not in invoice["_lines"]:
        raise invalid(
            f"No such line item on the invoice: '{id}'", f"{at}[invoice_line_item]", "resource_missing"
        )
    line = sim.find("line_item", id)
    quantity = given.get("quantity")
    if "amount" in given:
        amount = given["amount"]
    elif quantity is not None:
        if not 0 < quantity <= line["quantity"]:
            raise invalid("The quantity exceeds the line's.", param=f"{at}[quantity]")
        share = Decimal(line["amount"]) * quantity / Decimal(line["quantity"])
        amount = int(share.quantize(Decimal(1), ROUND_HALF_UP))
    else:
        raise missing(f"{at}[amount]")
    left = line["amount"] - line.get("_credited", 0)
    if (amount > left) if line["amount"] >= 0 else (amount < left or amount > 0):
        raise state(f"The amount exceeds what is left of the line ({dollars(left)}).", param=f"{at}[amount]")
    return _made(
        sim, type="invoice_line_item", amount=amount, description=line["description"], invoice_line_item=id,
        quantity=quantity if "amount" not in given else None, metadata=given.get("metadata") or {},
    )  # fmt: skip


def _custom(sim: Sim, description: str | None, quantity: int, unit: str) -> Obj:
    amount = cents(unit, quantity)
    made = _made(
        sim, type="custom_line_item", amount=amount, description=description, quantity=quantity,
        unit_amount_decimal=unit, unit_amount=int(unit) if unit.lstrip("-").isdecimal() else None,
    )  # fmt: skip
    made.pop("invoice_line_item", None)
    return made


def _made(sim: Sim, **fields: Any) -> Obj:
    return sim.new("credit_note_line_item", pretax_credit_amounts=[], taxes=[], tax_rates=[], **fields)


def _note(sim: Sim, params: Obj, plan: Plan) -> Obj:
    invoice, after = plan.invoice, plan.total - plan.before_payment
    kind = (
        "mixed" if plan.before_payment and after else "pre_payment" if plan.before_payment else "post_payment"
    )
    number = f"{invoice['number']}-CN-{len(_of(sim, invoice)) + 1:02d}"
    made = sim.new(
        "credit_note", invoice=invoice["id"], customer=invoice["customer"], number=number, type=kind
    )
    made |= dict.fromkeys(
        ("amount", "subtotal", "subtotal_excluding_tax", "total", "total_excluding_tax"), plan.total
    )
    return made | {
        "currency": "usd", "status": "issued", "voided_at": None, "memo": params.get("memo") or None,
        "metadata": merge_metadata(None, params.get("metadata")), "reason": params.get("reason") or None,
        "out_of_band_amount": plan.outside or None, "pre_payment_amount": plan.before_payment,
        "post_payment_amount": after, "refunds": [], "pretax_credit_amounts": [], "total_taxes": [],
        "customer_balance_transaction": None, "effective_at": params.get("effective_at") or sim.now(),
        "pdf": f"{sim.options.base_url}/credit_notes/{made['id']}", "_lines": [line["id"] for line in plan.lines],
        "_preview": plan.lines,
    }  # fmt: skip


def create(sim: Sim, params: Obj) -> Obj:
    """Issue a credit note with its refund and customer credit, and return it.

    Raises StripeError: 400 for amounts that the invoice does not allow, 404 for an unknown invoice or line.
    """
    plan = _plan(sim, params)
    note = _note(sim, params, plan)
    del note["_preview"]
    for line in plan.lines:
        sim.save(line)
        if line.get("invoice_line_item"):
            _credit_line(sim, line, 1)
    sim.save(note)
    if plan.credit:
        booked = customers.book_balance(
            sim,
            note["customer"],
            -plan.credit,
            "credit_note",
            credit_note=note["id"],
            invoice=note["invoice"],
        )
        note["customer_balance_transaction"] = booked["id"]
    note["refunds"] = _refunds(sim, plan)
    sim.save(note)
    _apply(sim, plan.invoice, plan.before_payment, plan.total - plan.before_payment)
    sim.emit("credit_note.created", note)
    _close_if_nothing_remains(sim, plan.invoice)
    return note


def _credit_line(sim: Sim, line: Obj, sign: int) -> None:
    invoiced = sim.find("line_item", line["invoice_line_item"])
    invoiced["_credited"] = invoiced.get("_credited", 0) + sign * line["amount"]
    sim.save(invoiced)


def _refunds(sim: Sim, plan: Plan) -> list[Obj]:
    rows = [
        (each["refund"], each.get("amount_refunded") or sim.find("refund", each["refund"])["amount"])
        for each in plan.linked
    ]
    charge = collecting.charge_of(sim, plan.invoice) if plan.refund else None
    if charge is not None:
        rows.append((refunds.make(sim, charge, plan.refund, None, {})["id"], plan.refund))
    return [
        {"amount_refunded": amount, "refund": id, "payment_record_refund": None, "type": "refund"}
        for id, amount in rows
    ]


def _apply(sim: Sim, invoice: Obj, before: int, after: int) -> None:
    """Apply a credit note's amounts in cents to its invoice; negative amounts reverse a voided one."""
    changes = {
        "pre_payment_credit_notes_amount": invoice["pre_payment_credit_notes_amount"] + before,
        "post_payment_credit_notes_amount": invoice["post_payment_credit_notes_amount"] + after,
        "amount_remaining": invoice["amount_remaining"] - before,
        "amount_due": invoice["amount_due"] - before,
    }
    previous = changed(invoice, changes)
    sim.save(invoice)
    sim.emit("invoice.updated", invoice, previous)


def _close_if_nothing_remains(sim: Sim, invoice: Obj) -> None:
    if invoice["status"] in ("open", "uncollectible") and invoice["amount_remaining"] == 0:
        invoices.drop_payment(sim, invoice)
        invoices.close_paid(sim, invoice)


def preview(sim: Sim, params: Obj) -> Obj:
    """Return the credit note that `create` would issue, without any effect. Raises StripeError as `create` does."""
    return _note(sim, params, _plan(sim, params))


def preview_lines(sim: Sim, params: Obj) -> Page:
    """Return a page of the lines that `create` would make. Raises StripeError as `create` and `page` do."""
    return page(_plan(sim, params).lines, params, "/v1/credit_notes/preview/lines")


def void(sim: Sim, params: Obj, id: str) -> Obj:
    """Void a credit note and return it.

    Raises StripeError: 404 for an unknown id, 400 when it is void already or its invoice is not open.
    """
    del params
    found = sim.find("credit_note", id)
    invoice = sim.find("invoice", found["invoice"])
    if found["status"] != "issued":
        raise state("This credit note is already void.", "credit_note_not_voidable")
    if invoice["status"] != "open":
        raise StripeError("You can only void credit notes of open invoices.", code="credit_note_not_voidable")
    found |= {"status": "void", "voided_at": sim.now()}
    sim.save(found)
    for line in lines_of(sim, found)[0]:
        if line.get("invoice_line_item"):
            _credit_line(sim, line, -1)
    _apply(sim, invoice, -found["pre_payment_amount"], -found["post_payment_amount"])
    sim.emit("credit_note.voided", found)
    return found


def update(sim: Sim, params: Obj, id: str) -> Obj:
    """Update a credit note's memo and metadata, and return it.

    Raises StripeError: 404 for an unknown id, 400 for invalid metadata.
    """
    found = sim.find("credit_note", id)
    changes: Obj = {"memo": params["memo"] or None} if "memo" in params else {}
    if "metadata" in params:
        changes["metadata"] = merge_metadata(found["metadata"], params["metadata"])
    previous = changed(found, changes)
    sim.save(found)
    sim.emit("credit_note.updated", found, previous)
    return found


def _of(sim: Sim, invoice: Obj) -> list[Obj]:
    return [each for each in sim.store.newest("credit_note") if each["invoice"] == invoice["id"]]


def retrieve(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a credit note. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("credit_note", id)


def listing(sim: Sim, params: Obj) -> Page:
    """Return credit notes, newest first. Raises StripeError as `page` does."""
    found = matching(sim.store.newest("credit_note"), params, "customer", "invoice")
    return page(found, params, "/v1/credit_notes", "credit_note")


def lines_of(sim: Sim, note: Obj) -> tuple[list[Obj], str]:
    """Return a credit note's lines and the list's path."""
    found = note.get("_preview") or [sim.find("credit_note_line_item", id) for id in note["_lines"]]
    return found, f"/v1/credit_notes/{note['id']}/lines"


def list_lines(sim: Sim, params: Obj, id: str) -> Page:
    """Return a page of a credit note's lines. Raises StripeError as `page` does, and 404 for an unknown credit
    note.
    """
    found, url = lines_of(sim, sim.find("credit_note", id))
    return page(found, params, url, "credit_note_line_item")


EMBEDDED["credit_note", "lines"] = lines_of

_TAKES = (
    "invoice lines amount memo metadata reason refund_amount credit_amount out_of_band_amount refunds effective_at"
    " email_type"
)
ROUTES = [
    route("GET", "/v1/credit_notes/preview", "credit_note_preview", preview, _TAKES),
    route("GET", "/v1/credit_notes/preview/lines", "credit_note_preview_lines_list", preview_lines, _TAKES),
    route("POST", "/v1/credit_notes", "credit_note_create", create, _TAKES),
    route("GET", "/v1/credit_notes", "credit_note_list", listing, "customer invoice created"),
    route("GET", "/v1/credit_notes/{id}", "credit_note_retrieve", retrieve),
    route("POST", "/v1/credit_notes/{id}", "credit_note_update", update),
    route("POST", "/v1/credit_notes/{id}/void", "credit_note_void_credit_note", void),
    route("GET", "/v1/credit_notes/{id}/lines", "credit_note_line_item_list", list_lines),
]
