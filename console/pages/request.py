"""One request: its steps, tokens times price by class, the reason of its cost, bookings, and its signed receipt."""

from datetime import UTC, datetime
from typing import Any

from fastapi import Request

from admin import requests as admin_requests
from admin.requests import RequestDetail
from billing.usage.request_list import RequestView
from console.components.base import Stat, Text, badge, box, card, description_list, link_button, page_head
from console.components.dialogs import secondary
from console.components.table import Column, Row, cell, data_table
from console.deps import Console
from console.format import Formatted, count, milliseconds, money, per_mtok, words
from console.pages.requests import OUTCOME_TONES, uuid_or_none
from console.panels.adjust import open_adjust_form
from console.panels.prices import CLASSES
from console.viewer import Viewer
from core.errors import NotFound
from core.money import pico_to_usd, usd_to_pico

_CLASSES = (
    Column("class", "Tokens of"),
    Column("tokens", "Tokens", numeric=True),
    Column("price", "Price per M", numeric=True),
    Column("cost", "Cost", numeric=True),
)
_BOOKINGS = (
    Column("kind", "Booking"),
    Column("from", "Debit"),
    Column("to", "Credit"),
    Column("amount", "Amount", numeric=True),
    Column("seal", "Link of the chain", numeric=True),
)


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the request of the path. A tenant role finds only requests of its own organisation. Raises NotFound."""
    wanted = uuid_or_none(str(request.path_params["request_id"]))
    if wanted is None:
        raise NotFound("There is no such request.")
    detail = await admin_requests.show_request(console.database, viewer.actor, request_id=wanted)
    one = detail.request
    back = f"/requests?tenant={one.tenant_id}" if viewer.is_platform else "/requests"
    with page_head(f"Request …{str(wanted)[-8:]}", str(wanted), crumb=("Requests", back)):
        badge(words(one.outcome).capitalize(), OUTCOME_TONES.get(one.outcome, "idle"))
        receipt = f"/requests/{wanted}/receipt" + (f"?tenant={one.tenant_id}" if viewer.is_platform else "")
        link_button("Signed receipt", receipt, "download", download=True)
        if viewer.may_bill:
            _adjust_button(console, viewer, one)
    with box("div", "grid stats"):
        Stat("Cost", money(one.cost_usd), _list_hint(detail.receipt))
        Stat("Input", count(one.input_tokens), f"{count(one.cached_input_tokens).text} cached")
        Stat("Output", count(one.output_tokens), f"{count(one.reasoning_tokens).text} reasoning")
        Stat("First token", milliseconds(one.ttft_us / 1000 if one.ttft_us else None), "after admission")
        Stat("Duration", milliseconds(one.duration_us / 1000))
    _cost(detail)
    _steps(one, viewer)
    _bookings(detail.receipt)


def _adjust_button(console: Console, viewer: Viewer, one: RequestView) -> None:
    async def adjust() -> None:
        await open_adjust_form(
            console,
            viewer,
            one.tenant_id,
            amount_usd=one.cost_usd,
            reason=f"Request {one.request_id}: ",
            month=f"{one.ended_at.astimezone(UTC):%Y-%m}",
        )

    secondary("Adjust", viewer.act(adjust), icon="tune")


def _list_hint(receipt: dict[str, Any]) -> str:
    saved = usd_to_pico(receipt["list_cost_usd"]) - usd_to_pico(receipt["cost_usd"])
    return f"{money(pico_to_usd(saved)).text} below the list" if saved > 0 else "at list prices"


def _cost(detail: RequestDetail) -> None:
    """Draw the cost calculation by token class, and its reason."""
    receipt = detail.receipt
    lines = receipt["classes"]
    version = f"Tokens times the price of version {receipt['price_version']}, pinned at admission."
    with card("What it cost", version, flush=True):
        table = data_table(
            _CLASSES,
            [_class_row(line) for line in lines],
            label="Cost by class of token",
            nothing="It used no tokens.",
        )
        if lines:
            total = money(receipt["cost_usd"])
            table.add_slot(
                "bottom-row",
                '<q-tr class="total"><q-td colspan="3">Total</q-td><q-td class="text-right">'
                f'<span title="{total.exact}">{total.text}</span></q-td></q-tr>',
            )
    with card("Why"):
        Text("p", receipt["why"])


def _class_row(line: dict[str, str]) -> Row:
    tokens = int(line["tokens"])
    return {
        "id": line["class"],
        "class": cell(CLASSES.get(line["class"], line["class"])),
        "tokens": cell(Formatted(f"{tokens:,}", f"{tokens:,}", float(tokens))),
        "price": cell(per_mtok(line["price_per_mtok_usd"])),
        "cost": cell(money(line["cost_usd"])),
    }


def _steps(one: RequestView, viewer: Viewer) -> None:
    """Draw the request's model, key, times and unbilled tokens."""
    with card("Steps"):
        known: list[tuple[str, Formatted | str]] = [
            ("Model", one.model),
            ("Tier", one.tier),
            ("Key", f"…{one.key_last4}" if one.key_last4 else "–"),
            ("Admitted", _instant(one.admitted_at)),
            ("Waited in the queue", milliseconds(one.queue_us / 1000)),
            ("First token after", milliseconds(one.ttft_us / 1000 if one.ttft_us else None)),
            ("Ended", _instant(one.ended_at)),
            ("Attempts", count(one.attempts)),
        ]
        if one.unbilled_input_tokens or one.unbilled_output_tokens:
            unbilled = f"{one.unbilled_input_tokens:,} input, {one.unbilled_output_tokens:,} output"
            known.append(("Tokens not charged", unbilled))
        if one.simulated:
            known.append(("Engine", "Simulated"))
        if viewer.is_platform:
            known += [("Tenant", one.tenant or str(one.tenant_id)), ("Replica", one.replica_id or "–")]
        description_list(known)


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def _bookings(receipt: dict[str, Any]) -> None:
    with card("In the ledger", "The transfers of this request.", flush=True):
        data_table(
            _BOOKINGS,
            [
                {
                    "id": one["transfer"],
                    "kind": cell(words(one["kind"]).capitalize()),
                    "from": cell(one["debit"]),
                    "to": cell(one["credit"]),
                    "amount": cell(money(one["amount_usd"])),
                    "seal": cell(one["seal"] or "not sealed yet"),
                }
                for one in receipt["ledger"]
            ],
            label="Bookings",
            nothing="It cost nothing, so nothing was booked.",
        )
