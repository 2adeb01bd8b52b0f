"""Tables of price books, and the form that schedules a price."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from nicegui import ui

from admin import prices as admin_prices
from billing.pricing.prices import TIERS, PriceView
from console.components.base import card
from console.components.dialogs import confirm, form_dialog, text_input
from console.components.table import Cell, Column, Row, actions_cell, cell, data_table
from console.deps import Console
from console.format import moment, per_mtok
from console.panels.amounts import parse_instant
from console.viewer import Viewer, toast_ok
from core.errors import Conflict
from core.money import per_mtok_to_pico_per_token

CLASSES = {
    "input": "Input",
    "cached_input": "Cached input",
    "output": "Output",
    "reasoning": "Reasoning",
}
OPTIONAL = {"cached_input": "Empty: as input", "reasoning": "Empty: as output"}
COLUMNS = (
    Column("model", "Model"),
    Column("whose", "Applies to"),
    *(Column(name, label, numeric=True) for name, label in CLASSES.items()),
    Column("state", "State"),
    Column("from", "Holds", numeric=True),
)


def price_state(price: PriceView, now: datetime) -> tuple[str, str]:
    """The version's state at `now` as (word, tone)."""
    if price.status == "withdrawn":
        return "Withdrawn", "idle"
    if datetime.fromisoformat(price.effective_from) > now:
        return "Scheduled", "info"
    if price.effective_to is not None and datetime.fromisoformat(price.effective_to) <= now:
        return "Ended", "idle"
    return "In force", "ok"


def price_rows(
    prices: Sequence[PriceView],
    now: datetime,
    tenants: dict[UUID, str] | None = None,
    *,
    with_acts: bool = False,
) -> list[Row]:
    """Table rows of price versions. `tenants` (names by id) adds the organisation, `with_acts` the actions."""
    rows = []
    for price in prices:
        word, tone = price_state(price, now)
        row: Row = {
            "id": str(price.id),
            "model": cell(price.model, sub=price.tier, text=True),
            "whose": cell("List price")
            if price.tenant_id is None
            else cell((tenants or {}).get(price.tenant_id, "Contract"), sub="contract"),
            "state": cell(word, tone=tone),
            "from": _validity(price, now),
        }
        for name in CLASSES:
            row[name] = cell(per_mtok(getattr(price, name)))
        if with_acts:
            row["acts"] = actions_cell(
                _actions(price, word), f"{price.model} {price.tier}, version {price.id}"
            )
        rows.append(row)
    return rows


def _actions(price: PriceView, word: str) -> list[tuple[str, str, str]]:
    """Actions on a version; none for prices derived from a contract's discount, which end with the contract."""
    if price.contract_id is not None:
        return []
    if word == "Scheduled":
        return [("withdraw", "Withdraw", "bad")]
    return [("end", "End", "bad")] if word == "In force" and price.ended_by is None else []


async def end_or_withdraw(console: Console, viewer: Viewer, price: PriceView, act: str) -> bool:
    """Confirm with a reason, then end the price book or withdraw the scheduled price. Returns False when cancelled."""
    name = f"{price.model} ({price.tier})"
    whose = "list price" if price.tenant_id is None else "contract price"
    if act == "withdraw":
        reason = await confirm(
            viewer,
            f"Withdraw the scheduled {whose} of {name}?",
            "It never holds; the price before it goes on.",
            "Withdraw",
            danger=True,
        )
        if reason is None:
            return False
        await admin_prices.withdraw_price(console.database, viewer.actor, version=price.id, reason=reason)
        toast_ok("The scheduled price is withdrawn.")
        return True
    what_then = (
        "Without a list price the model's requests are refused, unless a contract has a price of its own."
        if price.tenant_id is None
        else "The customer pays the list price, less the discount of its contract."
    )
    reason = await confirm(
        viewer,
        f"End the {whose} of {name} now?",
        f"{what_then} Requests admitted before keep their price. Scheduled versions of this book end too.",
        "End price",
        danger=True,
    )
    if reason is None:
        return False
    await admin_prices.end_price(
        console.database,
        viewer.actor,
        model=price.model,
        tier=price.tier,
        tenant_id=price.tenant_id,
        reason=reason,
    )
    toast_ok("The price is ended.")
    return True


def _validity(price: PriceView, now: datetime) -> Cell:
    begins = moment(price.effective_from, now)
    if price.effective_to is None:
        return cell(begins, sub="until replaced")
    ends = moment(price.effective_to, now)
    return cell(begins, sub=f"until {ends.exact.removesuffix(':00 UTC')}")


async def own_prices_panel(console: Console, viewer: Viewer, tenant_id: UUID) -> None:
    """Draw the prices of one organisation: contract prices and list prices."""
    prices = await admin_prices.list_prices(console.database, viewer.actor, tenant_id=tenant_id)
    with card(
        "Prices", "US dollars per million tokens. A contract price goes before the list price.", flush=True
    ):
        data_table(
            COLUMNS, price_rows(prices, console.clock.now()), label="Prices", nothing="No price is set yet."
        )


def parse_rate(text: str) -> str:
    """A decimal string of US dollars per million tokens from user input. Raises ValueError with a user message."""
    plain = text.strip().removeprefix("$").replace(",", "").strip()
    try:
        per_mtok_to_pico_per_token(plain)
    except ValueError:
        raise ValueError("Dollars per million tokens, such as 0.50.") from None
    return plain


async def save_below_cost(viewer: Viewer, conflict: Conflict, question: str) -> bool:
    """Ask whether to save what is below cost."""
    answer = await confirm(
        viewer, question, conflict.message, "Save all the same", danger=True, needs_reason=False
    )
    return answer is not None


async def save_price(console: Console, viewer: Viewer, facts: dict[str, Any]) -> bool:
    """Save a price; one below cost only after a confirmation. Returns False when that is not given."""
    try:
        await admin_prices.set_price(console.database, viewer.actor, **facts)
    except Conflict as conflict:
        if conflict.code != admin_prices.PRICE_BELOW_COST:
            raise
        if not await save_below_cost(viewer, conflict, "Save a price below cost?"):
            return False
        await admin_prices.set_price(console.database, viewer.actor, **facts, below_cost=True)
    return True


class RateFields:
    """The fields of a price's rates in dollars per million tokens."""

    def __init__(self) -> None:
        self._boxes: dict[str, ui.input] = {}
        with ui.element("div").classes("fields"):
            for name, label in CLASSES.items():
                self._boxes[name] = text_input(label, hint=OPTIONAL.get(name, "")).props(
                    "inputmode=decimal prefix=$"
                )

    @property
    def empty(self) -> bool:
        """Whether nothing is given."""
        return not any((box.value or "").strip() for box in self._boxes.values())

    def read(self) -> dict[str, str | None] | None:
        """The rates by class, None for one that follows another; None when a field is wrong, which says so then."""
        rates: dict[str, str | None] = {}
        for name, box in self._boxes.items():
            box.error = None
            if name in OPTIONAL and not (box.value or "").strip():
                rates[name] = None
                continue
            try:
                rates[name] = parse_rate(box.value or "")
            except ValueError as error:
                box.error = str(error)
        return None if any(box.error for box in self._boxes.values()) else rates


def open_price_form(
    console: Console,
    viewer: Viewer,
    models: Sequence[str],
    tenants: dict[str, str],
    done: Callable[[], Awaitable[None]],
    *,
    everyone: str = "All organisations (list price)",
) -> None:
    """Open the form of a price: rates, tier, organisation and start.

    `everyone`: whose price it is when no organisation is chosen.
    """

    async def save() -> bool:
        values = rates.read()
        try:
            begins = parse_instant(start.value or "")
            start.error = None
        except ValueError as error:
            start.error = str(error)
        if start.error or values is None:
            return False
        facts = {
            "model": model.value,
            "tier": tier.value,
            "tenant_id": UUID(whose.value) if whose.value else None,
            "effective_from": begins,
            "reason": (reason.value or "").strip() or None,
            **values,
        }
        if not await save_price(console, viewer, facts):
            return False
        toast_ok(f"The price of {model.value} is {'scheduled' if begins else 'set'}.")
        await done()
        return True

    with form_dialog(
        "New price",
        "Save price",
        viewer,
        save,
        sub="US dollars per million tokens. Requests keep the price that held when they were admitted.",
        wide=True,
    ):
        with ui.element("div").classes("fields"):
            model = ui.select(list(models), value=models[0] if models else None, label="Model").props(
                "outlined dense"
            )
            tier = ui.select({one: one.capitalize() for one in TIERS}, value="standard", label="Tier")
            tier.props("outlined dense")
            whose = ui.select({"": everyone, **tenants}, value="", label="Applies to")
            whose.props("outlined dense")
        rates = RateFields()
        start = text_input("Begins (UTC)", hint="Date or date and time; empty for now.")
        start.props["placeholder"] = "2026-12-01 00:00"
        reason = text_input("Reason", hint="Kept in the audit log.").props("maxlength=500")
