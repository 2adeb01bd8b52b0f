"""`penstock usage`: the usage report, and closed months in Parquet."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from admin import archive as admin_archive
from admin import usage as admin_usage
from admin.actor import Actor
from billing.ledger.months import parse_month
from billing.reports.usage_report import Totals
from billing.usage.archive import archive_dir
from billing.usage.period import parse_group_by, parse_period
from billing.usage.query import DIMENSIONS
from cli.context import AsJson, DataDir, acting, emit, open_db, perform, run
from cli.report_files import ReportArguments, write_comparison, write_report
from cli.tenancy import tenant_id_of
from core.db import Database
from core.money import pico_to_usd, usd_to_pico
from core.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Usage and cost.")


@app.callback()
def group() -> None:
    """Usage and cost."""


@app.command(
    epilog="Example: penstock usage report --from 2026-11-01 --to 2026-12-01 --by tenant,model --format xlsx "
    "--out november.xlsx"
)
def report(
    start: Annotated[
        str | None, typer.Option("--from", help="Date or whole UTC hour; default: start of this UTC month.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Excluded; default: end of this UTC month.")] = None,
    by: Annotated[
        str, typer.Option(help=f"Any of {','.join(DIMENSIONS)}, and tags (tag_NAME).")
    ] = "tenant,model",
    tenant: Annotated[str | None, typer.Option(help="Only this organisation.")] = None,
    output_format: Annotated[
        Literal["csv", "json", "xlsx", "parquet", "focus"],
        typer.Option("--format", help="focus = the charges as FOCUS 1.2, CSV or by the ending of --out."),
    ] = "csv",
    compare: Annotated[
        str | None, typer.Option(help="previous, or FROM..TO: both values, difference and percent.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Usage, cost, credit, adjustments, price per million tokens and GPU cost, as a file or side by side."""
    chosen = "json" if as_json else output_format

    async def act() -> None:
        period = parse_period(start, end)
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            arguments: ReportArguments = {
                "start": period[0],
                "end": period[1],
                "group_by": parse_group_by(by),
                "tenant_id": None if tenant is None else await tenant_id_of(database, who, tenant),
            }
            if compare is not None:
                await write_comparison(database, who, arguments, compare, chosen, out)
            else:
                await write_report(database, who, arguments, chosen, out)

    run(act)


@app.command(epilog="Example: penstock usage totals --from 2026-11-01 --to 2026-12-01 --json")
def totals(
    start: Annotated[
        str | None, typer.Option("--from", help="Date or whole UTC hour; default: start of this UTC month.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Excluded; default: end of this UTC month.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this organisation.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """The report's totals beside the ledger's own sums. Exit code 1 when they differ."""

    async def act() -> bool:
        period = parse_period(start, end)
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
            found = await admin_usage.usage_totals(
                database, who, start=period[0], end=period[1], tenant_id=tenant_id
            )
        emit(found if as_json else _side_by_side(found), as_json)
        return found.equal

    if not run(act):
        raise typer.Exit(1)


def _side_by_side(found: Totals) -> list[dict[str, str]]:
    """Rows that compare the report's figures with the ledger's."""
    report = usd_to_pico(found.totals.cost_usd) + usd_to_pico(found.totals.adjustment_usd)
    return [
        {"figure": "cost + adjustments", "report": pico_to_usd(report), "ledger": found.ledger.revenue_usd},
        {
            "figure": "paid from credit",
            "report": found.totals.credits_applied_usd,
            "ledger": found.ledger.from_credit_usd,
        },
    ]


@app.command(epilog="Example: penstock usage archive --month 2026-10 --json")
def archive(
    month: Annotated[str, typer.Option(help="A closed month, such as 2026-10.")],
    drop_partition: Annotated[
        bool,
        typer.Option(
            "--drop-partition",
            help="Then drop the month's rows from PostgreSQL; refused unless archive, rollups and ledger agree.",
        ),
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a closed month's usage to Parquet with a manifest; running it again writes the same bytes."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_archive.archive_month(
            database, who, _archive(data_dir), month=parse_month(month), drop_partition=drop_partition
        )

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock usage months --from 2026-09 --to 2026-11 --by month,model --json")
def months(
    start: Annotated[str, typer.Option("--from", help="First month, such as 2026-09.")],
    end: Annotated[str, typer.Option("--to", help="Last month, included.")],
    by: Annotated[
        str,
        typer.Option(
            help="Any of tenant_id,project_id,key_id,model,tier,region,gpu,price_version,simulated,day,month."
        ),
    ] = "month,tenant_id,model",
    tenant: Annotated[str | None, typer.Option(help="Only this organisation.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Sum up whole months: archived ones from Parquet, the others from the database."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        report = await admin_archive.months(
            database,
            who,
            _archive(data_dir),
            first=parse_month(start, "from"),
            last=parse_month(end, "to"),
            group_by=parse_group_by(by),
            tenant_id=tenant_id,
        )
        lines = [{**line.by, **{k: getattr(line, k) for k in _LINE}} for line in report.lines]
        return report if as_json else lines

    perform(act, data_dir, as_json)


_LINE = (
    "requests", "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "cost_usd",
    "list_cost_usd",
)  # fmt: skip


def _archive(data_dir: Path | None) -> Path:
    """The archive's folder: PENSTOCK_ARCHIVE_DIR, else a folder below the data directory."""
    settings = Settings()
    return archive_dir(settings if data_dir is None else settings.model_copy(update={"data_dir": data_dir}))
