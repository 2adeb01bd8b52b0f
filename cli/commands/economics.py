"""`penstock economics`: GPU cost, margin, the margin bridge, host prices, providers' invoices."""

import csv
import io
import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from admin import economics as admin_economics
from admin.actor import Actor
from billing.economics.digitalocean import API, fetch_invoice
from billing.economics.provider_invoices import InvoiceIn, InvoiceLineIn
from billing.economics.published_costs import published_example
from billing.ledger.months import bounds, parse_month
from billing.usage.period import parse_group_by, parse_instant, parse_period
from cli.commands import breakeven
from cli.context import AsJson, DataDir, acting, emit, open_db, perform, run
from cli.tenancy import Reason, parse_id
from core.db import Database
from core.errors import InvalidRequest
from workers.catalog import load_catalog

MAX_FILE_BYTES = 1 << 20

app = typer.Typer(no_args_is_help=True, help="GPU cost and margin, host prices, providers' invoices.")
prices = typer.Typer(
    no_args_is_help=True,
    help="What hosts cost per hour: dated, never changing a closed month.",
    epilog="Example: penstock economics host-price list",
)
invoices = typer.Typer(
    no_args_is_help=True,
    help="Invoices of the providers of GPUs, and their variance.",
    epilog="Example: penstock economics provider-invoice variance --month 2026-11",
)
app.add_typer(prices, name="host-price")
app.add_typer(invoices, name="provider-invoice")
breakeven.register(app)

From = Annotated[
    str | None, typer.Option("--from", help="Date or whole UTC hour; default: start of this UTC month.")
]
To = Annotated[str | None, typer.Option("--to", help="Excluded; default: end of this UTC month.")]
Month = Annotated[str, typer.Option(help="As 2026-11.")]


@app.command(epilog="Example: penstock economics report --from 2026-11-01 --by tenant,model --fully-loaded")
def report(
    start: From = None,
    end: To = None,
    by: Annotated[str, typer.Option(help="Any of tenant,model,hour,day.")] = "tenant,model",
    fully_loaded: Annotated[
        bool, typer.Option("--fully-loaded", help="Spread idle, loading and asleep by direct cost.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show revenue, GPU cost, cost per million tokens and margin; idle, loading and asleep as lines of their own."""

    async def act() -> Any:
        period = parse_period(start, end)
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            return await admin_economics.economics_report(
                database,
                who,
                start=period[0],
                end=period[1],
                by=parse_group_by(by),
                fully_loaded=fully_loaded,
            )

    rows = msgspec.to_builtins(run(act))
    if not as_json:
        kept = ("line", "tenant", "model", "hour", "day", "requests", "revenue_usd", "gpu_cost_usd",
                "gpu_cost_per_mtok_usd", "margin_usd", "margin_pct")  # fmt: skip
        names = [name for name in kept if any(row[name] is not None for row in rows)]
        rows = [{name: row[name] for name in names} for row in rows]
    emit(rows, as_json, "GPU cost and margin")


@app.command(epilog="Example: penstock economics states --from 2026-11-01 --to 2026-12-01")
def states(start: From = None, end: To = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show host-hours and their cost by kind of host and state."""

    async def act() -> Any:
        period = parse_period(start, end)
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            return await admin_economics.host_states(database, who, start=period[0], end=period[1])

    emit(run(act), as_json, "Host-hours by state")


@app.command(epilog="Example: penstock economics bridge 2026-10 2026-11")
def bridge(
    before: Annotated[
        str, typer.Argument(help="A month such as 2026-10, or FROM/TO, dates or whole UTC hours.")
    ],
    after: Annotated[str, typer.Argument(help="The period to explain, written likewise.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Explain why the margin of a period differs from another's: six effects that add up exactly."""

    async def act() -> Any:
        spans = _span(before), _span(after)
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            return await admin_economics.margin_bridge(database, who, before=spans[0], after=spans[1])

    view = run(act)
    if as_json:
        emit(view, as_json)
        return
    steps = [{"step": f"margin of {before}", "usd": view.before.margin_usd}]
    steps += [{"step": name, "usd": amount} for name, amount in view.effects.items()]
    emit([*steps, {"step": f"margin of {after}", "usd": view.after.margin_usd}], as_json, "Margin bridge")


def _span(text: str) -> tuple[Any, Any]:
    if "/" not in text:
        return bounds(parse_month(text))
    start, _, end = text.partition("/")
    return parse_instant(start, "from"), parse_instant(end, "to")


@app.command(epilog="Example: penstock economics example")
def example(as_json: AsJson = False) -> None:
    """Put a published cost example through our own arithmetic and say which assumption does not hold."""
    found = published_example()
    if as_json:
        emit(found, as_json)
        return
    emit(found.rows, as_json, f"List price of an H100: ${found.list_usd_per_gpu_hour} per GPU-hour")
    print(found.conclusion)


@prices.command(
    "set", epilog='Example: penstock economics host-price set gpu-h200x8-1128gb 32.10 --source "contract 17"'
)
def set_price(
    host_kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of host, as `list` shows it.")],
    usd_per_hour: Annotated[str, typer.Argument(metavar="USD", help="Dollars per hour of the whole host.")],
    source: Annotated[str, typer.Option(help="Where the price is from.")],
    effective_from: Annotated[
        str | None, typer.Option("--from", help="Date or whole UTC hour; default: the running hour.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Enter what a kind of host costs from an hour on."""

    async def act(database: Database, who: Actor) -> Any:
        return await admin_economics.set_host_price(
            database,
            who,
            host_kind=host_kind,
            usd_per_hour=usd_per_hour,
            source=source,
            effective_from=None if effective_from is None else parse_instant(effective_from, "--from"),
        )

    perform(act, data_dir, as_json)


@prices.command("list", epilog="Example: penstock economics host-price list --json")
def list_prices(
    host_kind: Annotated[str | None, typer.Option("--kind", help="Only this kind of host.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show all prices with their dates."""

    async def act(database: Database, who: Actor) -> Any:
        return await admin_economics.list_host_prices(database, who, host_kind=host_kind)

    perform(act, data_dir, as_json, title="Host prices")


@invoices.command(epilog="Example: penstock economics provider-invoice enter do-2026-11.json")
def enter(
    file: Annotated[Path, typer.Argument(help="JSON, or CSV with host_kind,description,hours,amount_usd.")],
    provider: Annotated[str | None, typer.Option(help="For CSV: who sent it.")] = None,
    number: Annotated[str | None, typer.Option(help="For CSV: its number.")] = None,
    month: Annotated[str | None, typer.Option(help="For CSV: the month it is for, as 2026-11.")] = None,
    total: Annotated[str | None, typer.Option("--total", help="For CSV: its total in dollars.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Enter a provider's invoice from a file; its lines must add up to its total."""

    async def act() -> Any:
        invoice = _read(file, {"provider": provider, "number": number, "month": month, "total_usd": total})
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            return await admin_economics.enter_provider_invoice(
                database, who, invoice=invoice, source=f"file {file.name}"[:200]
            )

    emit(run(act), as_json)


def _read(file: Path, facts: dict[str, str | None]) -> InvoiceIn:
    """Parse an invoice file, JSON or CSV; `facts` completes the CSV. Raises InvalidRequest."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise InvalidRequest(f"{file} is larger than {MAX_FILE_BYTES:,} bytes")
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{file} is not UTF-8 text") from None
    try:
        if file.suffix.lower() != ".csv":
            return msgspec.json.decode(text, type=InvoiceIn)
        missing = [name for name, value in facts.items() if value is None]
        if missing:
            raise InvalidRequest(f"a CSV file has only lines: give {', '.join(missing)} as options")
        rows = [
            {k: v for k, v in row.items() if v not in (None, "")} for row in csv.DictReader(io.StringIO(text))
        ]
        lines = msgspec.convert(rows, list[InvoiceLineIn])
        return InvoiceIn(**{name: str(value) for name, value in facts.items()}, lines=lines)
    except (msgspec.MsgspecError, csv.Error) as error:
        raise InvalidRequest(f"{file} is no invoice: {error}") from None


@invoices.command(
    epilog="Example: DIGITALOCEAN_TOKEN=... penstock economics provider-invoice fetch --month 2026-11"
)
def fetch(
    month: Month,
    api: Annotated[str, typer.Option(help="Where the provider's API is.")] = API,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a month's invoice from DigitalOcean and enter it; DIGITALOCEAN_TOKEN must be set."""

    async def act() -> Any:
        token = os.environ.get("DIGITALOCEAN_TOKEN", "")
        if not token:
            raise InvalidRequest("set DIGITALOCEAN_TOKEN to a token that may read billing")
        invoice = await fetch_invoice(token, parse_month(month), tuple(load_catalog().hosts), api=api)
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            return await admin_economics.enter_provider_invoice(
                database, who, invoice=invoice, source="DigitalOcean billing API"
            )

    emit(run(act), as_json)


@invoices.command("list", epilog="Example: penstock economics provider-invoice list --month 2026-11")
def list_invoices(
    month: Annotated[str | None, typer.Option(help="Only this month.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show providers' invoices, voided ones included."""

    async def act() -> Any:
        wanted = None if month is None else parse_month(month)
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            return await admin_economics.list_provider_invoices(database, who, month=wanted)

    emit(run(act), as_json, "Providers' invoices")


@invoices.command(epilog='Example: penstock economics provider-invoice void 0190... --reason "entered twice"')
def void(
    invoice: Annotated[str, typer.Argument(metavar="ID", help="Id, as `list` shows it.")],
    reason: Reason,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Take a mistaken invoice out of account; it stays readable."""

    async def act() -> Any:
        invoice_id = parse_id(invoice, "provider's invoice")
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            return await admin_economics.void_provider_invoice(
                database, who, invoice_id=invoice_id, reason=reason
            )

    emit(run(act), as_json)


@invoices.command(epilog="Example: penstock economics provider-invoice variance --month 2026-11")
def variance(month: Month, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what was invoiced for a month against what our host-hours cost."""

    async def act(database: Database, who: Actor) -> Any:
        return await admin_economics.provider_variance(database, who, month=parse_month(month))

    perform(act, data_dir, as_json, title=f"Invoiced against accounted, {month}")
