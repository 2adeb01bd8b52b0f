"""Reconciliation: a month's figures by gateway, ledger, invoices and Stripe; engines' counters down to requests."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from urllib.parse import quote
from uuid import UUID

from fastapi import Request
from nicegui import ui

from admin import periods as admin_periods
from admin import reconcile as admin_reconcile
from admin import tenants as admin_tenants
from billing.close.cross_check import CrossCheckRow
from billing.economics.engine_reconciliation_views import EngineRow, IntervalRow, TraceRow
from billing.ledger.months import bounds, month_name, parse_month
from console.components.base import Text, badge, box, card, notice, page_head
from console.components.dialogs import confirm, secondary
from console.components.flash import reload_with
from console.components.lazy import lazy
from console.components.table import Cell, Column, Row, actions_cell, cell, data_table
from console.deps import Console
from console.format import Formatted, count, moment, money
from console.pages.periods import known_month
from console.viewer import Viewer

ROWS = 200
"""Rows shown of engines and of requests."""
SOURCES = {
    "gateway": "Gateway, usage rows",
    "ledger": "Ledger",
    "invoices": "Invoices",
    "stripe_meter": "Stripe's meter",
    "stripe_invoices": "Stripe's invoices",
    "engines": "Engines",
}
CAUSES = (
    ("billed", "Billed"),
    ("engine_failed", "Engine failed"),
    ("zero_output", "Empty answer"),
    ("cancelled_tail", "Cancelled tail"),
    ("retried", "Retried"),
    ("choices", "Shared prompts"),
    ("warmup", "Warm-up"),
    ("probe", "Probes"),
    ("unobserved", "Unobserved"),
    ("unexplained", "Unexplained"),
)
"""The terms of the token balance, in the order of display."""
_CROSS_CHECK_COLUMNS = (
    Column("source", "Who tells it"),
    Column("tokens", "Tokens", numeric=True),
    Column("amount", "Amount", numeric=True),
    Column("equal", "Against the gateway"),
    Column("detail", "Detail", sortable=False),
)
_ENGINE_COLUMNS = (
    Column("engine", "Engine"),
    Column("counted", "Counted", numeric=True),
    Column("uncompared", "Not compared yet", numeric=True),
    Column("unobserved", "Unobserved", numeric=True),
    Column("unexplained", "Unexplained", numeric=True),
    Column("state", "State"),
    Column("seen", "Last heard of", numeric=True),
)


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the cross-check of a month and the engines; with `?engine=`, one engine's intervals and requests."""
    boot_id = request.query_params.get("engine", "")
    if boot_id:
        await _EngineDetail(console, viewer, boot_id).draw()
        return
    periods = await admin_periods.list_periods(console.database, viewer.actor)
    month = known_month(request.query_params.get("month", ""), periods) or parse_month(periods[0].month)

    async def run_now() -> None:
        found = await admin_reconcile.run_now(console.database, viewer.actor)
        reload_with(f"Compared {count(found.compared).text} stretches.")

    with page_head(
        "Reconciliation", "Engines = gateway = ledger = Stripe. Every difference leads to requests."
    ):
        secondary("Compare now", viewer.act(run_now), icon="sync")
        field = ui.select(
            [one.month for one in periods],
            value=month_name(month),
            label="Month",
            on_change=lambda event: ui.navigate.to(f"/reconciliation?month={event.value}"),
        )
        field.props("outlined dense options-dense")
    engines = await admin_reconcile.list_engines(console.database, viewer.actor, limit=ROWS)
    unexplained_banner(engines)

    async def draw_cross_check() -> None:
        rows = await admin_reconcile.cross_check_month(console.database, viewer.actor, month=month)
        _cross_check(month, rows, [one for one in engines if is_unexplained(one) and _ran_in(one, month)])

    lazy(viewer, "Adding the month up in every place…", draw_cross_check)
    with card(
        "Engines", "One line for each start of an engine, those that do not come out first.", flush=True
    ):
        data_table(
            _ENGINE_COLUMNS,
            engine_rows(engines, console.clock.now()),
            label="Engines",
            nothing="No engine has reported its counters yet.",
        )


def unexplained_banner(engines: Sequence[EngineRow]) -> None:
    """The banner of unexplained tokens that are not accepted; draws nothing when there are none."""
    wrong = [one for one in engines if is_unexplained(one)]
    if not wrong:
        return
    tokens = sum(abs(one.unexplained_prompt) + abs(one.unexplained_generation) for one in wrong)
    notice(
        "bad",
        f"{count(tokens).text} tokens are unexplained on {len(wrong)} engine{'' if len(wrong) == 1 else 's'}",
        "Engines counted what no usage row, failure or probe explains. Open an engine to see the requests.",
    )


def is_unexplained(engine: EngineRow) -> bool:
    """Whether the engine has unexplained tokens that are not accepted."""
    return bool(engine.unexplained_prompt or engine.unexplained_generation) and not engine.accepted


def _ran_in(engine: EngineRow, month: date) -> bool:
    start, end = bounds(month)
    return engine.first_seen < end and engine.last_seen >= start


def _cross_check(month: date, rows: Sequence[CrossCheckRow], wrong: Sequence[EngineRow]) -> None:
    with card(
        f"The chain of {month_name(month)}",
        "Each place that knows the month, against the gateway.",
        flush=True,
    ):
        data_table(
            _CROSS_CHECK_COLUMNS,
            [cross_check_row(row, is_red=row.source == "engines" and bool(wrong)) for row in rows],
            label="The chain",
            nothing="Nothing is known.",
        )


def cross_check_row(row: CrossCheckRow, *, is_red: bool = False) -> Row:
    """The row of one source, with whether it equals the gateway. `is_red`: engines leave tokens unexplained."""
    return {
        "id": row.source,
        "source": cell(SOURCES.get(row.source, row.source)),
        "tokens": cell(count(row.tokens)),
        "amount": cell(money(row.amount_usd)),
        "equal": cell("unexplained", tone="bad") if is_red else _verdict(row),
        "detail": cell(row.detail, wrap=True),
    }


def _verdict(row: CrossCheckRow) -> Cell:
    if row.source == "gateway":
        return cell("the measure")
    if row.source == "engines":
        return cell("explained", tone="ok") if row.tokens is not None else cell("not told")
    if row.equal is None:
        return cell("not told")
    if row.equal:
        return cell("equal", tone="ok")
    parts = []
    if row.token_difference:
        parts.append(f"{row.token_difference:+,} tokens")
    if row.difference_usd is not None and row.difference_usd != "0.00":
        parts.append(money(row.difference_usd).text)
    return cell(", ".join(parts) or "different", tone="bad")


def engine_rows(engines: Sequence[EngineRow], now: datetime) -> list[Row]:
    """Table rows of engines, each with a link to its intervals."""
    rows: list[Row] = []
    for one in engines:
        unexplained = f"{one.unexplained_prompt:+,} in, {one.unexplained_generation:+,} out"
        clean = not (one.unexplained_prompt or one.unexplained_generation)
        rows.append(
            {
                "id": one.boot_id,
                "engine": cell(
                    one.replica_id,
                    href=f"/reconciliation?engine={quote(one.boot_id, safe='')}",
                    sub=one.model,
                    text=True,
                ),
                "counted": cell(count(one.prompt_tokens + one.generation_tokens)),
                "uncompared": cell(count(one.uncompared_tokens)),
                "unobserved": cell(count(one.unobserved_tokens)),
                "unexplained": cell("0" if clean else unexplained),
                "state": cell("explained", tone="ok")
                if clean
                else cell("accepted", tone="warn")
                if one.accepted
                else cell("unexplained", tone="bad"),
                "seen": cell(moment(one.last_seen, now), sub="ended" if one.ended_at else ""),
            }
        )
    return rows


class _EngineDetail:
    """One engine: its intervals with a line for each cause, and the requests behind one interval."""

    def __init__(self, console: Console, viewer: Viewer, boot_id: str) -> None:
        self.console = console
        self.viewer = viewer
        self.boot_id = boot_id

    async def draw(self) -> None:
        """Draw intervals and requests. Raises NotFound."""
        stretches = await admin_reconcile.list_intervals(
            self.console.database, self.viewer.actor, boot_id=self.boot_id, limit=ROWS
        )
        tenants = await admin_tenants.list_tenants(self.console.database, self.viewer.actor)
        self.names = {tenant.id: tenant.name for tenant in tenants}
        open_wrong = [one for one in stretches if one.unexplained and one.accepted_by is None]
        with page_head("Engine", self.boot_id, crumb=("Reconciliation", "/reconciliation")):
            badge("Unexplained" if open_wrong else "Explained", "bad" if open_wrong else "ok")
            if open_wrong:
                secondary("Accept the difference", self.viewer.act(self._accept), icon="task_alt")
        if open_wrong:
            summary = ", ".join(f"{one.unexplained:+,} {one.counter}" for one in open_wrong[:4])
            notice(
                "bad",
                "Tokens that nothing explains",
                f"{summary} tokens. The requests below were on the engine.",
            )
        self._intervals(stretches)
        self.requests = box("div", "stack")
        await self._trace(None)

    def _intervals(self, intervals: Sequence[IntervalRow]) -> None:
        by_id = {str(number): one for number, one in enumerate(intervals)}

        async def trace(_: str, row: str) -> None:
            await self._trace(by_id[row].from_at)

        used = [(name, label) for name, label in CAUSES if any(getattr(one, name) for one in intervals)]
        columns = (
            Column("span", "Stretch"),
            Column("counter", "Counter"),
            Column("engine", "Engine", numeric=True),
            *(Column(name, label, numeric=True) for name, label in used),
            Column("acts", ""),
        )
        with card("Stretches", "Between two instants at which the engine stood still.", flush=True):
            data_table(
                columns,
                [self._interval_row(key, one, used) for key, one in by_id.items()],
                label="Stretches",
                nothing="Nothing of this engine is compared yet.",
                on_action=self.viewer.act(trace),
            )
        for one in intervals:
            if one.accepted_by:
                Text("p", f"Accepted by {one.accepted_by}: {one.accepted_reason}", "muted")
                break

    def _interval_row(self, key: str, one: IntervalRow, used: Sequence[tuple[str, str]]) -> Row:
        begin = f"{one.from_at.astimezone(UTC):%-d %b %H:%M:%S}"
        end = f"{one.to_at.astimezone(UTC):%-d %b %H:%M:%S}" if one.to_at else "the end"
        return {
            "id": key,
            "span": cell(
                Formatted(begin, f"{one.from_at.isoformat()}", one.from_at.timestamp()), sub=f"to {end}"
            ),
            "counter": cell(one.counter, sub=f"{one.requests} requests"),
            "engine": cell(count(one.engine)),
            **{name: cell(count(getattr(one, name))) for name, _ in used},
            "acts": actions_cell([("trace", "Requests", "")], f"of the stretch from {begin}"),
        }

    async def _trace(self, from_at: datetime | None) -> None:
        """Show the requests of the interval that begins at `from_at`, or of all unexplained intervals."""
        rows = await admin_reconcile.trace(
            self.console.database, self.viewer.actor, boot_id=self.boot_id, from_at=from_at, limit=ROWS
        )
        title = "Requests" if from_at is None else f"Requests since {from_at.astimezone(UTC):%-d %b %H:%M:%S}"
        self.requests.clear()
        with self.requests, card(title, f"The newest {ROWS}; those without a usage row first.", flush=True):
            data_table(
                (
                    Column("request", "Request"),
                    Column("tenant", "Tenant"),
                    Column("cause", "Came to"),
                    Column("input", "Input", numeric=True),
                    Column("output", "Output", numeric=True),
                    Column("at", "Admitted", numeric=True),
                ),
                trace_rows(rows, self.names, self.console.clock.now()),
                label="Requests of the engine",
                nothing="No request was on the engine in this time.",
            )

    async def _accept(self) -> None:
        reason = await confirm(
            self.viewer,
            "Accept the difference?",
            "It stays on its lines and counts no longer for the alarm and the close of the month. It is billed to no "
            "organisation. Should the difference change, the alarm comes back.",
            "Accept",
            danger=True,
        )
        if reason is None:
            return
        await admin_reconcile.accept(
            self.console.database, self.viewer.actor, boot_id=self.boot_id, reason=reason
        )
        reload_with("The difference is accepted.")


def trace_rows(rows: Sequence[TraceRow], tenants: dict[UUID, str], now: datetime) -> list[Row]:
    """Table rows of requests on an engine."""
    return [
        {
            "id": f"{number}",
            "request": cell(str(one.request_id), mono=True, sub=one.detail),
            "tenant": cell(tenants.get(one.tenant_id, "–") if one.tenant_id else "–", text=True),
            "cause": cell(
                one.cause.replace("_", " "),
                tone="ok" if one.cause == "billed" else "bad" if one.cause == "missing" else "warn",
            ),
            "input": cell(count(one.prompt_tokens)),
            "output": cell(count(one.generation_tokens)),
            "at": cell(moment(one.at, now)),
        }
        for number, one in enumerate(rows)
    ]
