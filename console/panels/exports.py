"""Scheduled exports: definitions, runs with checksums, and downloads of their files."""

from collections.abc import Sequence
from datetime import date
from uuid import UUID

from nicegui import ui

from admin import exports as admin_exports
from billing.exports.datasets import DATASETS
from billing.exports.definitions import ExportDefinition, ExportRun
from billing.exports.writers import FORMATS
from billing.ledger.months import month_name
from console.components.base import box, card
from console.components.dialogs import form_dialog, primary, text_input
from console.components.flash import reload_with
from console.components.table import Column, Row, actions_cell, cell, data_table
from console.deps import Console
from console.format import Formatted, count, moment, money
from console.viewer import Viewer

CADENCES = {"hourly": "Hourly", "daily": "Daily", "monthly": "Monthly"}
DATASET_NAMES = {
    "report": "Usage report",
    "focus_charges": "FOCUS charges",
    "focus_gpu": "FOCUS, our GPU cost",
    "journal": "Journal",
    "invoices": "Invoices",
    "audit": "Audit log",
}
_DEFINITIONS = (
    Column("name", "Export"),
    Column("dataset", "Data set"),
    Column("destination", "To"),
    Column("state", "State"),
    Column("acts", ""),
)
_RUNS = (
    Column("period", "Period"),
    Column("name", "Export"),
    Column("rows", "Rows", numeric=True),
    Column("sum", "Sums", numeric=True),
    Column("sha", "SHA-256", sortable=False),
    Column("at", "Written", numeric=True),
    Column("file", "File", sortable=False),
)


async def exports_panel(console: Console, viewer: Viewer, month: date) -> None:
    """Draw the definitions and the newest runs."""
    definitions = await admin_exports.list_exports(console.database, viewer.actor)
    runs = await admin_exports.list_runs(console.database, viewer.actor, limit=200)
    by_id = {str(one.id): one for one in definitions}

    async def act(name: str, row: str) -> None:
        one = by_id[row]
        if name == "run":
            await _run(console, viewer, one, month)
        else:
            await admin_exports.enable_export(
                console.database, viewer.actor, name=one.name, enabled=not one.enabled
            )
            reload_with(f"{one.name} is {'stopped' if one.enabled else 'going on'}.")

    async def create() -> None:
        _open_form(console, viewer)

    with card(
        "Scheduled exports", "Files are only ever added; the same content again writes nothing.", flush=True
    ) as actions:
        with actions:
            primary("New export", viewer.act(create), icon="schedule_send")
        data_table(
            _DEFINITIONS,
            [_definition_row(one, month) for one in definitions],
            label="Scheduled exports",
            nothing="No export is scheduled.",
            on_action=viewer.act(act),
        )
    with card("Runs", "The newest 200; a revision is new only when something changed.", flush=True):
        data_table(
            _RUNS,
            run_rows(console, runs, {one.id: one for one in definitions}),
            label="Runs",
            nothing="Nothing was exported yet.",
        )


async def _run(console: Console, viewer: Viewer, one: ExportDefinition, month: date) -> None:
    made = await admin_exports.run_export(
        console.database, viewer.actor, console.settings, name=one.name, period=month_name(month)
    )
    reload_with("Written." if made.is_new else "Nothing has changed since the last run.")


def _definition_row(one: ExportDefinition, month: date) -> Row:
    acts = [("toggle", "Stop" if one.enabled else "Resume", "")]
    if one.cadence == "monthly":
        acts.insert(0, ("run", f"Write {month_name(month)}", ""))
    return {
        "id": str(one.id),
        "name": cell(one.name, sub=f"{CADENCES.get(one.cadence, one.cadence)} · {one.format}", text=True),
        "dataset": cell(DATASET_NAMES.get(one.dataset, one.dataset), sub=one.group_by.replace(",", ", ")),
        "destination": cell(one.destination, mono=True),
        "state": cell("On" if one.enabled else "Stopped", tone="ok" if one.enabled else "idle"),
        "acts": actions_cell(acts, f"export {one.name}"),
    }


def run_rows(
    console: Console, runs: Sequence[ExportRun], definitions: dict[UUID, ExportDefinition]
) -> list[Row]:
    """Table rows of runs, each with a link to its file."""
    now = console.clock.now()
    rows: list[Row] = []
    for run in runs:
        definition = definitions.get(run.definition_id)
        sums = ", ".join(f"{name} {usd}" for name, usd in run.sums.items())
        first = next(iter(run.sums.values()), None)
        rows.append(
            {
                "id": str(run.id),
                "period": cell(f"{run.period_start:%Y-%m-%d}", sub=f"to {run.period_end:%Y-%m-%d}"),
                "name": cell(definition.name if definition else "–", sub=f"revision {run.revision}"),
                "rows": cell(count(run.row_count)),
                "sum": cell(Formatted(money(first).text, sums)),
                "sha": cell(Formatted(run.sha256[:12], run.sha256), mono=True),
                "at": cell(moment(run.created_at, now), sub="final" if run.final else "may change"),
                "file": cell(Formatted("Download", run.location), href=f"/finance/exports/{run.id}"),
            }
        )
    return rows


def _open_form(console: Console, viewer: Viewer) -> None:
    """The form of a scheduled export."""

    async def save() -> bool:
        for field in (name, destination):
            field.error = None if (field.value or "").strip() else "This is needed."
        if name.error or destination.error:
            return False
        await admin_exports.create_export(
            console.database,
            viewer.actor,
            name=name.value.strip(),
            dataset=dataset.value,
            format=format.value,
            cadence=cadence.value,
            destination=destination.value.strip(),
        )
        reload_with("The export is scheduled; it writes each period when it has ended.")
        return True

    with form_dialog(
        "New export",
        "Schedule export",
        viewer,
        save,
        sub="From this month on. Each file comes with a manifest: schema version, rows, sums, SHA-256.",
        wide=True,
    ):
        name = text_input("Name", hint="One word, such as month-end.")
        with box("div", "fields"):
            dataset = ui.select({one: DATASET_NAMES.get(one, one) for one in DATASETS}, value="report")
            format = ui.select({one: one.upper() for one in FORMATS}, value="parquet")
            cadence = ui.select(CADENCES, value="monthly")
            for field, label in ((dataset, "Data set"), (format, "Format"), (cadence, "Every")):
                field.props("outlined dense")
                field.props["label"] = label
        destination = text_input("To", "finance", hint="A folder, or s3://bucket/prefix.")
