"""The contract of an organisation: discount, committed spend, terms of payment, service level."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from nicegui import ui

from admin import contracts as admin_contracts
from admin.contracts import ContractView
from admin.prices import PRICE_BELOW_COST
from billing.pricing.contracts import DEFAULT_PAYMENT_DAYS
from console.components.base import badge, box, card, description_list, empty
from console.components.dialogs import confirm, form_dialog, secondary, text_input
from console.components.table import Column, Row, actions_cell, cell, data_table
from console.deps import Console
from console.format import moment, money
from console.panels.amounts import parse_instant, parse_usd
from console.panels.prices import save_below_cost
from console.viewer import Viewer, toast_ok
from core.errors import Conflict

LEVELS = {"": "None", "ttft": "Time to first token", "availability": "Availability"}
_COLUMNS = (
    Column("from", "From"),
    Column("to", "Until"),
    Column("discount", "Discount", numeric=True),
    Column("commit", "Committed a month", numeric=True),
    Column("days", "Payment", numeric=True),
    Column("reason", "Reason", sortable=False),
    Column("acts", ""),
)


def discount_text(bps: int) -> str:
    """Basis points as percent: 1500 -> 15%, 1250 -> 12.5%."""
    whole, rest = divmod(bps, 100)
    return f"{whole}.{rest:02d}".rstrip("0").rstrip(".") + "%"


def parse_percent(text: str) -> int:
    """Basis points from user input such as "15" or "12.5 %". Raises ValueError with a user message."""
    plain = text.strip().removesuffix("%").strip() or "0"
    whole, _, rest = plain.partition(".")
    if not (whole.isascii() and whole.isdigit() and len(whole) <= 3) or (
        rest and not (rest.isascii() and rest.isdigit() and len(rest) <= 2)
    ):
        raise ValueError("A percentage such as 15 or 12.5.")
    bps = int(whole) * 100 + int(rest.ljust(2, "0") or "0")
    if bps > 10_000:
        raise ValueError("At most 100 percent.")
    return bps


def sla_words(rule: dict[str, Any] | None) -> str:
    """A service-level rule as a sentence."""
    if rule is None:
        return "No service level is promised"
    credit = f"{rule['credit_percent']}% of the month's charges come back"
    if rule["metric"] == "availability":
        return f"At least {rule['threshold']}% of requests answered, else {credit}"
    return f"{rule['percentile']}% of first tokens within {rule['threshold']} ms, else {credit}"


def state_of(contract: ContractView, now: datetime) -> tuple[str, str]:
    """The contract's state at `now` as (word, tone)."""
    if datetime.fromisoformat(contract.effective_from) > now:
        return "Scheduled", "info"
    if contract.effective_to is not None and datetime.fromisoformat(contract.effective_to) <= now:
        return "Ended", "idle"
    return "In force", "ok"


async def contract_panel(console: Console, viewer: Viewer, tenant_id: UUID) -> None:
    """Draw the contract in effect; for platform roles also the others, with the actions."""
    panel = _ContractPanel(console, viewer, tenant_id)
    await panel.draw()


class _ContractPanel:
    """Contracts of one organisation."""

    def __init__(self, console: Console, viewer: Viewer, tenant_id: UUID) -> None:
        self.console = console
        self.viewer = viewer
        self.tenant_id = tenant_id
        self.place: ui.element

    async def draw(self) -> None:
        """Create the card."""
        self.place = box("div", "stack")
        await self.reload()

    async def reload(self) -> None:
        """Read and show the present state."""
        contracts = await admin_contracts.list_contracts(
            self.console.database, self.viewer.actor, tenant_id=self.tenant_id
        )
        self.place.clear()
        with self.place:
            self._current(contracts)
            if contracts and (self.viewer.is_platform or len(contracts) > 1):
                self._all(contracts)

    def _current(self, contracts: list[ContractView]) -> None:
        now = self.console.clock.now()
        held = next((one for one in contracts if state_of(one, now)[0] == "In force"), None)
        with card("Contract", "What was agreed beyond the list prices.") as actions:
            if self.viewer.may_bill:
                with actions:
                    secondary("New contract", self.viewer.act(self.add), icon="handshake")
            if held is None:
                empty("handshake", "No contract in force", "List prices hold, without a committed spend.")
                return
            with box("div", "row-line"):
                badge("In force", "ok")
            description_list(
                [
                    ("Discount", f"{discount_text(held.discount_bps)} off list prices"),
                    (
                        "Committed spend",
                        "None" if held.commit_monthly_usd is None else money(held.commit_monthly_usd),
                    ),
                    ("Payment", _payment_words(held)),
                    ("Service level", sla_words(held.sla)),
                    ("From", held.effective_from[:10]),
                    ("Until", held.effective_to[:10] if held.effective_to else "No end"),
                ]
            )

    def _all(self, contracts: list[ContractView]) -> None:
        now = self.console.clock.now()
        with card("All contracts", flush=True):
            data_table(
                _COLUMNS,
                [self._row(one, now) for one in contracts],
                label="Contracts",
                nothing="No contract yet.",
                on_action=self.viewer.act(self.end),
            )

    def _row(self, one: ContractView, now: datetime) -> Row:
        word = state_of(one, now)[0]
        acts = [("end", "End", "bad")] if self.viewer.may_bill and word != "Ended" else []
        ends = datetime.fromisoformat(one.effective_to) if one.effective_to else None
        return {
            "id": str(one.id),
            "from": cell(moment(one.effective_from, now), sub=word),
            "to": cell("No end") if ends is None else cell(moment(ends, now)),
            "discount": cell(discount_text(one.discount_bps)),
            "commit": cell(money(one.commit_monthly_usd)),
            "days": cell(f"{one.payment_days} days", sub="automatic" if one.automatic_payment else ""),
            "reason": cell(one.reason, wrap=True, sub=one.created_by if self.viewer.is_platform else ""),
            "acts": actions_cell(acts, f"contract from {one.effective_from[:10]}"),
        }

    async def end(self, _: str, row: str) -> None:
        """End a contract now, after a warning of the committed spend that remains due."""
        warning = await admin_contracts.end_warning(
            self.console.database, self.viewer.actor, contract_id=UUID(row)
        )
        committed = "Nothing is committed from now on." if warning is None else f"Note that {warning}."
        reason = await confirm(
            self.viewer,
            "End this contract?",
            f"List prices hold for requests admitted from now on. {committed} "
            "A contract that has not begun is withdrawn.",
            "End contract",
            danger=True,
        )
        if reason is None:
            return
        await admin_contracts.end_contract(
            self.console.database, self.viewer.actor, contract_id=UUID(row), reason=reason
        )
        toast_ok("The contract is ended.")
        await self.reload()

    async def add(self) -> None:
        """Open the form of a new contract."""
        open_contract_form(self.console, self.viewer, self.tenant_id, self.reload)


def _level(metric: str, threshold: str, percentile: int, credit: str) -> dict[str, Any] | None:
    """The service-level rule of the form, which sla_terms validates. Raises ValueError with a user message."""
    if not metric:
        return None
    if not credit.strip().isdigit():
        raise ValueError("Whole percent of the month's charges, 1 to 100.")
    rule: dict[str, Any] = {"metric": metric, "credit_percent": int(credit.strip()[:4])}
    if metric == "availability":
        return rule | {"threshold": threshold.strip().removesuffix("%").strip()}
    if not threshold.strip().isdigit():
        raise ValueError("Whole milliseconds.")
    return rule | {"threshold": int(threshold.strip()[:9]), "percentile": percentile}


async def _save(console: Console, viewer: Viewer, facts: dict[str, Any]) -> bool:
    """Save a contract; one that puts prices below cost only after a confirmation. Returns False without it."""
    try:
        await admin_contracts.add_contract(console.database, viewer.actor, **facts)
    except Conflict as conflict:
        if conflict.code != PRICE_BELOW_COST:
            raise
        if not await save_below_cost(viewer, conflict, "Save a discount below cost?"):
            return False
        await admin_contracts.add_contract(console.database, viewer.actor, **facts, below_cost=True)
    return True


def open_contract_form(
    console: Console, viewer: Viewer, tenant_id: UUID, done: Callable[[], Awaitable[None]]
) -> None:
    """Open the form: discount, committed spend, payment days, service level, start and end."""

    async def save() -> bool:
        values: dict[str, Any] = {}

        def take(field: ui.input, name: str, parse: Callable[[str], Any]) -> None:
            try:
                values[name] = parse(field.value or "")
                field.error = None
            except ValueError as error:
                field.error = str(error)

        take(discount, "discount_bps", parse_percent)
        take(commit, "commit_monthly_usd", lambda text: parse_usd(text) if text.strip() else None)
        take(days, "payment_days", _whole_days)
        take(begins, "effective_from", parse_instant)
        take(ends, "effective_to", parse_instant)
        take(limit, "sla", lambda text: _level(metric.value, text, percentile.value, credit.value or ""))
        reason.error = None if (reason.value or "").strip() else "Say why: it goes to the audit log."
        if len(values) < 6 or reason.error:
            return False
        values |= {
            "tenant_id": tenant_id, "automatic_payment": bool(automatic.value), "reason": reason.value.strip(),
        }  # fmt: skip
        if not await _save(console, viewer, values):
            return False
        toast_ok("The contract is set; its prices hold for requests admitted from then on.")
        await done()
        return True

    with form_dialog(
        "New contract",
        "Save contract",
        viewer,
        save,
        sub="The discount becomes prices of this customer. Requests keep the price that held when they were admitted.",
        wide=True,
    ):
        with box("div", "fields"):
            discount = text_input("Discount in percent", "0").props("inputmode=decimal suffix=%")
            commit = text_input("Committed a month", hint="Empty for none.").props(
                "inputmode=decimal prefix=$"
            )
            days = text_input("Days to pay", str(DEFAULT_PAYMENT_DAYS)).props("inputmode=numeric")
        automatic = ui.switch("Charge the saved card automatically").props("dense")
        with box("div", "fields"):
            begins = text_input("Begins (UTC)", hint="Empty for now.")
            ends = text_input("Ends (UTC)", hint="Empty for no end.")
        with box("div", "fields"):
            metric = ui.select(LEVELS, value="", label="Service level").props("outlined dense")
            percentile = ui.select([50, 75, 90, 95, 99], value=95, label="Percentile").props("outlined dense")
            limit = text_input("Promise", hint="Milliseconds, or percent answered.")
            credit = text_input("Credit when missed", "10").props("inputmode=numeric suffix=%")
        for field in (limit, credit):
            field.bind_visibility_from(metric, "value", backward=bool)
        percentile.bind_visibility_from(metric, "value", value="ttft")
        reason = text_input("Reason", hint="Kept in the audit log.").props("maxlength=500")


def _payment_words(contract: ContractView) -> str:
    """How invoices are paid under the contract."""
    if contract.automatic_payment:
        return "the saved card is charged automatically"
    return f"within {contract.payment_days} days of an invoice"


def _whole_days(text: str) -> int:
    """A number of days from user input. Raises ValueError with a user message."""
    plain = text.strip()
    if not (plain.isascii() and plain.isdigit() and len(plain) <= 3):
        raise ValueError("Whole days.")
    return int(plain)
