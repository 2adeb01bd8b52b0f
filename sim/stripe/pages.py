"""The HTML payment page of a Checkout session, which offers the test cards."""

from html import escape
from urllib.parse import parse_qs

from sim.stripe import checkout
from sim.stripe.cards import CARDS
from sim.stripe.errors import StripeError
from sim.stripe.sim import Sim

_OFFERED = (
    ("pm_card_visa", "Visa 4242, works"),
    ("pm_card_chargeDeclined", "Visa 0002, is declined"),
    ("pm_card_chargeDeclinedInsufficientFunds", "Visa 9995, insufficient funds"),
    ("pm_card_chargeCustomerFail", "Visa 0341, works when kept, is declined when charged"),
    ("pm_card_createDispute", "Visa 0259, is disputed afterwards"),
)

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body{{font:16px system-ui;max-width:26rem;margin:3rem auto;padding:0 1rem}}
.sim{{background:#7c2d12;color:#fff;padding:.5rem .75rem;border-radius:.25rem}}
button,select{{font:inherit;padding:.5rem .75rem;margin:.5rem .5rem .5rem 0;max-width:100%}}</style></head>
<body><p class="sim">SIMULATED: no card is charged, no money moves.</p>
<h1>{title}</h1>{body}</body></html>
"""


def page(title: str, body: str) -> bytes:
    """Return a complete HTML page; `title` is text, `body` is HTML."""
    return _PAGE.format(title=escape(title), body=body).encode()


def show(sim: Sim, id: str, problem: str = "") -> tuple[int, bytes]:
    """Return HTTP status and page of a session."""
    session = sim.store.get("checkout.session", id)
    if session is None:
        return 404, page("No such payment page", "<p>The address is wrong, or the stand-in was reset.</p>")
    if session["status"] != "open":
        return 200, page(f"This page is {session['status']}", "<p>It takes no payment any more.</p>")
    rows = "".join(
        f"<li>{escape(item['description'] or '')} &times; {item['quantity']}: {dollars(item['amount_total'])}</li>"
        for item in checkout.items_of(sim, session)[0]
    )
    verb = f"Pay {dollars(session['amount_total'])}" if session["mode"] == "payment" else "Save card"
    cards = "".join(f'<option value="{name}">{escape(text)}</option>' for name, text in _OFFERED)
    body = (
        f"<ul>{rows}</ul>{f'<p role=alert><strong>{escape(problem)}</strong></p>' if problem else ''}"
        f'<form method="post"><label>Card <select name="card">{cards}</select></label><br>'
        f'<button name="action" value="pay">{verb}</button>'
        f'<button name="action" value="cancel">Cancel</button></form>'
    )
    return 200, page(verb, body)


def act(sim: Sim, id: str, form: bytes) -> tuple[int, bytes, str]:
    """Handle the submitted form; return HTTP status, page, and the redirect URL (empty = no redirect)."""
    fields = {name: values[0] for name, values in parse_qs(form.decode(errors="replace")).items()}
    session = sim.store.get("checkout.session", id)
    if session is None or session["status"] != "open":
        return (*show(sim, id), "")
    if fields.get("action") == "cancel":
        return 303, b"", session["cancel_url"] or session["success_url"]
    card = fields.get("card", "pm_card_visa")
    if card not in CARDS:
        return (*show(sim, id, "There is no such card."), "")
    try:
        checkout.complete(sim, id, card)
    except StripeError as error:
        _, shown = show(sim, id, error.error["message"])
        return 402, shown, ""
    return 303, b"", str(session["success_url"]).replace("{CHECKOUT_SESSION_ID}", id)


def dollars(cents: int) -> str:
    """Return cents as dollars: 1234 -> $12.34."""
    return f"{'-' if cents < 0 else ''}${abs(cents) // 100}.{abs(cents) % 100:02d}"
