"""Re-rating a month: the dry run with differences by organisation and line, and the request for a correction."""

from collections.abc import Sequence
from datetime import date
from typing import Any
from uuid import UUID

from nicegui import ui

from admin import corrections as admin_corrections
from admin import models as admin_models
from billing.invoicing.correction_views import TenantDelta
from billing.invoicing.corrections import DryRun
from billing.invoicing.rerate import COMMIT, DifferenceView
from billing.ledger.months import month_name
from billing.pricing.prices import TIERS
from console.components.base import Text, box, formatted, notice
from console.components.dialogs import form_dialog, secondary, text_input
from console.components.flash import reload_with
from console.components.table import Column, Row, cell, data_table
from console.deps import Console
from console.format import count, money, per_mtok
from console.panels.prices import CLASSES, OPTIONAL, parse_rate
from console.viewer import Viewer
from core.errors import InvalidRequest

MAX_LINES = 200
"""Lines listed on the page; the command line writes all of them."""
_TENANT_COLUMNS = (
    Column("tenant", "Tenant"),
    Column("lines", "Lines", numeric=True),
    Column("delta", "Change", numeric=True),
)
_LINE_COLUMNS = (
    Column("tenant", "Tenant"),
    Column("model", "Line"),
    Column("tokens", "Tokens", numeric=True),
    Column("old", "Was", numeric=True),
    Column("new", "Becomes", numeric=True),
    Column("delta", "Change", numeric=True),
)


def diff_tables(
    delta_usd: str,
    by_tenant: Sequence[TenantDelta],
    lines: Sequence[DifferenceView],
    tenants: dict[UUID, str],
) -> None:
    """Draw the difference: its sum, by organisation and by line."""
    if not lines:
        notice("idle", "Nothing changes", "No usage of the month changes its price by this.")
        return
    with box("p"):
        Text("span", "In all ")
        formatted(money(delta_usd), "b")
        Text("span", "; below zero is in the customers' favour.", "muted")
    data_table(
        _TENANT_COLUMNS,
        [
            {
                "id": str(one.tenant_id),
                "tenant": cell(tenants.get(one.tenant_id, str(one.tenant_id)), text=True),
                "lines": cell(str(one.lines)),
                "delta": cell(money(one.delta_usd)),
            }
            for one in by_tenant
        ],
        label="Change by tenant",
        nothing="Nothing changes.",
    )
    data_table(
        _LINE_COLUMNS,
        [_line_row(number, one, tenants) for number, one in enumerate(lines[:MAX_LINES])],
        label="Change by line",
        nothing="Nothing changes.",
    )
    if len(lines) > MAX_LINES:
        Text("p", f"The first {MAX_LINES} of {len(lines)} lines.", "muted")


def _line_row(number: int, line: DifferenceView, tenants: dict[UUID, str]) -> Row:
    old, new = per_mtok(line.old_price_per_mtok_usd), per_mtok(line.new_price_per_mtok_usd)
    return {
        "id": str(number),
        "tenant": cell(tenants.get(line.tenant_id, "–"), text=True),
        "model": (
            cell("Committed spend", sub=_committed_in(line), text=True)
            if line.kind == COMMIT
            else cell(line.model, sub=f"{line.token_class.replace('_', ' ')}, {line.tier}", text=True)
        ),
        "tokens": cell(count(line.tokens)),
        "old": cell(money(line.old_usd), sub=f"{old.text} per M"),
        "new": cell(money(line.new_usd), sub=f"{new.text} per M"),
        "delta": cell(money(line.delta_usd)),
    }


def _committed_in(line: DifferenceView) -> str:
    return f"of {line.used_in:%Y-%m}, which late usage meets" if line.used_in else "what usage lacks to it"


async def open_correction_form(
    console: Console, viewer: Viewer, month: date, tenants: dict[UUID, str]
) -> None:
    """Open the form: the correct price, its dry run, and the request for the correction."""
    models = await admin_models.list_models(console.database, viewer.actor)
    form = _CorrectionForm(console, viewer, month, tenants)
    form.draw([model.name for model in models])


class _CorrectionForm:
    """The dialog with rates, dry run and request."""

    def __init__(self, console: Console, viewer: Viewer, month: date, tenants: dict[UUID, str]) -> None:
        self.console = console
        self.viewer = viewer
        self.month = month
        self.tenants = tenants
        self.rates: dict[str, ui.input] = {}

    def draw(self, models: Sequence[str]) -> None:
        """Open the dialog."""
        with form_dialog(
            f"Re-rate {month_name(self.month)}",
            "Ask for the correction",
            self.viewer,
            self._request,
            sub="The price that should have held, in US dollars per million tokens. Trying it stores nothing; "
            "a request waits for a second person.",
            wide=True,
        ):
            with box("div", "fields"):
                self.model = ui.select(list(models), value=models[0] if models else None, label="Model")
                self.tier = ui.select(
                    {one: one.capitalize() for one in TIERS}, value="standard", label="Tier"
                )
                names = {
                    "": "All organisations (list price)",
                    **{str(one): name for one, name in self.tenants.items()},
                }
                self.tenant = ui.select(names, value="", label="Applies to")
                for field in (self.model, self.tier, self.tenant):
                    field.props("outlined dense")
            with box("div", "fields"):
                for name, label in CLASSES.items():
                    self.rates[name] = text_input(label, hint=OPTIONAL.get(name, "")).props(
                        "inputmode=decimal prefix=$"
                    )
            self.refund = ui.checkbox("Pay back what is credited on paid invoices")
            self.reason = text_input(
                "Reason", hint="The customers' notice, the credit notes and the audit log carry it."
            ).props("maxlength=500")
            with box("div", "actions"):
                secondary("Try it", self.viewer.act(self._dry_run), icon="calculate")
            self.result = box("div", "stack")

    def _spec(self) -> dict[str, Any] | None:
        """The specification of the fields; None when a field is invalid, which then shows its error."""
        rate: dict[str, Any] = {"model": self.model.value, "tier": self.tier.value}
        for name, field in self.rates.items():
            if name in OPTIONAL and not (field.value or "").strip():
                field.error = None
                continue
            try:
                rate[name] = parse_rate(field.value or "")
                field.error = None
            except ValueError as error:
                field.error = str(error)
        if any(field.error for field in self.rates.values()):
            return None
        if self.tenant.value:
            rate["tenant_id"] = self.tenant.value
        return {"rates": [rate], "refund": bool(self.refund.value)}

    async def _dry_run(self) -> None:
        spec = self._spec()
        if spec is None:
            return
        found: DryRun = await admin_corrections.dry_run(
            self.console.database, self.viewer.actor, month=self.month, spec=spec
        )
        self.result.clear()
        with self.result:
            diff_tables(found.delta_usd, found.tenants, found.lines, self.tenants)

    async def _request(self) -> bool:
        spec = self._spec()
        self.reason.error = None if (self.reason.value or "").strip() else "Say why: the customers read it."
        if spec is None or self.reason.error:
            return False
        try:
            await admin_corrections.request_correction(
                self.console.database,
                self.viewer.actor,
                month=self.month,
                spec=spec,
                reason=self.reason.value.strip(),
            )
        except InvalidRequest as error:
            self.result.clear()
            with self.result:
                notice("warn", "No correction was asked for", error.message)
            return False
        reload_with("The correction waits for a second person.")
        return True
