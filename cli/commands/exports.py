"""`penstock exports`: scheduled exports to a folder or an S3-compatible store, and checks of their files."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from admin import exports as admin_exports
from admin.actor import Actor
from billing.exports.datasets import DATASETS
from billing.usage.period import parse_instant
from cli.context import AsJson, DataDir, emit, perform, run
from cli.report_files import export_settings
from cli.tenancy import MaybeReason, tenant_id_of
from core.db import Database

app = typer.Typer(no_args_is_help=True, help="Scheduled exports with manifests, and their checks.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name or id of the export.")]


@app.command(
    epilog="Example: penstock exports create usage-daily --dataset report --by tenant,model --format parquet "
    "--schedule daily --to usage"
)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One word; the folder of its files.")],
    to: Annotated[str, typer.Option("--to", help="Folder below the export folder, or s3://bucket/prefix.")],
    dataset: Annotated[str, typer.Option(help=f"One of {', '.join(DATASETS)}.")] = "report",
    output_format: Annotated[
        Literal["csv", "json", "xlsx", "parquet"], typer.Option("--format", help="File format.")
    ] = "parquet",
    schedule: Annotated[
        Literal["hourly", "daily", "monthly"], typer.Option(help="Length of each file's period.")
    ] = "daily",
    by: Annotated[str, typer.Option(help="Grouping of the report; default tenant,model.")] = "",
    tenant: Annotated[str | None, typer.Option(help="Only this organisation, without GPU cost.")] = None,
    since: Annotated[
        str | None, typer.Option("--from", help="First period; default: start of this UTC month.")
    ] = None,
    reason: MaybeReason = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Schedule an export. The store's address and credentials come from PENSTOCK_EXPORT_S3_*."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await admin_exports.create_export(
            database,
            who,
            name=name,
            dataset=dataset,
            format=output_format,
            cadence=schedule,
            destination=to,
            group_by=by,
            tenant_id=tenant_id,
            starts_at=None if since is None else parse_instant(since, "from"),
            reason=reason,
        )

    perform(act, data_dir, as_json)


@app.command("list", epilog="Example: penstock exports list --json")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List scheduled exports."""
    perform(admin_exports.list_exports, data_dir, as_json)


@app.command("run", epilog="Example: penstock exports run usage-daily 2026-11-20")
def run_(
    name: Name,
    period: Annotated[str, typer.Argument(metavar="PERIOD", help="2026-11, 2026-11-20 or 2026-11-20T13.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Export one period now. Nothing new is written when nothing changed."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_exports.run_export(
            database, who, export_settings(data_dir), name=name, period=period
        )

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock exports runs usage-daily --json")
def runs(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this export's.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 100,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List what was written, the newest period first."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_exports.list_runs(database, who, name=name, limit=limit)

    perform(act, data_dir, as_json)


@app.command(epilog='Example: penstock exports stop usage-daily --reason "moved to the warehouse"')
def stop(name: Name, reason: MaybeReason = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Stop an export; what it wrote stays."""
    _enable(name, False, reason, data_dir, as_json)


@app.command(epilog="Example: penstock exports resume usage-daily")
def resume(name: Name, reason: MaybeReason = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Resume a stopped export; what it missed is caught up."""
    _enable(name, True, reason, data_dir, as_json)


def _enable(name: str, enabled: bool, reason: str | None, data_dir: Path | None, as_json: bool) -> None:
    async def act(database: Database, who: Actor) -> object:
        return await admin_exports.enable_export(database, who, name=name, enabled=enabled, reason=reason)

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock exports verify .penstock/exports/usage")
def verify(
    path: Annotated[Path, typer.Argument(exists=True, help="A folder of exports, or one manifest.json.")],
    as_json: AsJson = False,
) -> None:
    """Check files against their manifests: checksum, size, rows and sums. Exit code 1 when one does not fit."""

    async def act() -> bool:
        verdicts = admin_exports.verify(path)
        emit(verdicts, as_json)
        return all(not one.problems for one in verdicts)

    if not run(act):
        raise typer.Exit(1)
