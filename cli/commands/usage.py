"""`penstock usage`: the usage report."""

import sys
from typing import Annotated, Literal

import typer

from admin import billing as admin_billing
from billing.period import parse_group_by, parse_period
from billing.report_files import to_csv, to_json
from cli.context import AsJson, DataDir, actor, open_db, run
from cli.tenancy import tenant_id_of

app = typer.Typer(no_args_is_help=True, help="Usage and cost.")


@app.callback()
def group() -> None:
    """Usage and cost."""


@app.command(
    epilog="Example: penstock usage report --from 2026-11-01 --to 2026-12-01 --by tenant,model --format csv"
)
def report(
    start: Annotated[
        str | None, typer.Option("--from", help="Date or whole UTC hour; default: start of this UTC month.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Excluded; default: end of this UTC month.")] = None,
    by: Annotated[
        str,
        typer.Option(
            help="Any of tenant,project,key,model,tier,region,price_version,simulated and one of hour,day,month."
        ),
    ] = "tenant,model",
    tenant: Annotated[str | None, typer.Option(help="Only this organisation.")] = None,
    output_format: Annotated[Literal["csv", "json"], typer.Option("--format", help="csv or json.")] = "csv",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print usage, cost, price per million tokens and GPU cost as CSV or JSON."""

    async def act() -> None:
        period = parse_period(start, end)
        async with open_db(data_dir) as database:
            tenant_id = None if tenant is None else await tenant_id_of(database, actor(), tenant)
            rows = await admin_billing.usage_report(
                database,
                actor(),
                start=period[0],
                end=period[1],
                group_by=parse_group_by(by),
                tenant_id=tenant_id,
            )
        if as_json or output_format == "json":
            sys.stdout.buffer.write(to_json(rows) + b"\n")
        else:
            sys.stdout.buffer.write(to_csv(rows).encode())

    run(act)
