"""The form that requests an adjustment of a customer's account."""

from collections.abc import Awaitable, Callable
from uuid import UUID

from nicegui import ui

from admin import adjustments as admin_adjustments
from admin.money_rules import get_rules
from console.components.base import box
from console.components.dialogs import form_dialog, text_input
from console.deps import Console
from console.format import money
from console.panels.amounts import parse_usd
from console.viewer import Viewer, toast_ok

SIGNS = {"": "In the customer's favour", "-": "Charged to the customer"}


async def open_adjust_form(
    console: Console,
    viewer: Viewer,
    tenant_id: UUID,
    *,
    amount_usd: str = "",
    reason: str = "",
    month: str = "",
    done: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Open the form: amount in US dollars, sign, corrected month, reason. Above the limit it needs an approval."""
    rules = await get_rules(console.database)

    async def save() -> bool:
        usd = ""
        try:
            usd = parse_usd(amount.value or "")
            amount.error = None
        except ValueError as error:
            amount.error = str(error)
        why.error = None if (why.value or "").strip() else "Say why: the customer and the audit log see it."
        if amount.error or why.error:
            return False
        made = await admin_adjustments.request_adjustment(
            console.database,
            viewer.actor,
            tenant_id=tenant_id,
            amount_usd=f"{sign.value}{usd}",
            reason=why.value.strip(),
            corrects=(corrects.value or "").strip() or None,
        )
        shown = money(made.amount_usd).text
        if made.status == "waiting":
            toast_ok(f"The adjustment of {shown} waits for a second person (Billing, Changes).")
        else:
            toast_ok(f"{shown} is booked as an adjustment.")
        if done is not None:
            await done()
        return True

    with form_dialog(
        "Adjust",
        "Ask for adjustment",
        viewer,
        save,
        sub=f"Up to {money(rules.approval_limit_usd).text} it is booked at once; above, another person of finance "
        "must agree. "
        "Nothing is rewritten: it is a dated entry of today, on the next invoice or as credit.",
    ):
        with box("div", "fields"):
            sign = ui.select(SIGNS, value="", label="Side").props("outlined dense")
            amount = text_input("Amount in US dollars", amount_usd).props(
                "autofocus inputmode=decimal prefix=$"
            )
        corrects = text_input("Month it corrects", month, hint="Such as 2026-10; empty for none.")
        why = text_input("Reason", reason, hint="The customer reads it.").props("maxlength=500")
