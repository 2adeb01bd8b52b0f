"""`penstock corrections`: re-rate a past month under other prices, with an approval."""

import json
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from admin import corrections as admin_corrections
from admin.actor import Actor
from billing.invoicing.corrections import DryRun
from billing.ledger.months import parse_month
from cli.commands.invoices import Month
from cli.context import AsJson, DataDir, acting, emit, open_db, perform, run
from cli.deciding import add_decisions
from cli.tenancy import Reason, parse_id, tenant_id_of
from core.db import Database
from core.errors import InvalidRequest

app = typer.Typer(
    no_args_is_help=True,
    help="Corrections: a month told again under other prices. One person asks, another agrees; the person at the "
    "command line is the user of the operating system.",
)

MAX_FILE_BYTES = 1_000_000

Model = Annotated[str | None, typer.Option("--model", help="Only this model; needed with --input.")]
ForTenant = Annotated[
    str | None, typer.Option("--tenant", help="Only this organisation: short name, name or id.")
]
Input = Annotated[str | None, typer.Option("--input", help="Dollars per million input tokens.")]
Cached = Annotated[str | None, typer.Option("--cached-input", help="Default: as input.")]
Output = Annotated[str | None, typer.Option("--output", help="Dollars per million output tokens.")]
Reasoning = Annotated[str | None, typer.Option("--reasoning", help="Default: as output.")]
Tier = Annotated[str, typer.Option("--tier", help="priority, standard or batch.")]
AsOf = Annotated[
    str | None,
    typer.Option("--as-of", help="The price book of this date or instant instead of given prices."),
]
File = Annotated[
    Path | None,
    typer.Option("--file", help="JSON with `rates` or `as_of`, and optionally tenant_id, model, refund."),
]
Refund = Annotated[bool, typer.Option("--refund", help="Pay back what is credited on paid invoices.")]
CorrectionId = Annotated[str, typer.Argument(metavar="ID", help="Id of the correction.")]


@app.command("dry-run", epilog="Example: penstock corrections dry-run --month 2026-11 --file prices.json")
def dry_run(
    month: Month,
    model: Model = None,
    tenant: ForTenant = None,
    input_: Input = None,
    cached_input: Cached = None,
    output: Output = None,
    reasoning: Reasoning = None,
    tier: Tier = "standard",
    as_of: AsOf = None,
    file: File = None,
    refund: Refund = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what would change by tenant and line; nothing is stored."""
    rate = _rate(model, tier, input_, cached_input, output, reasoning)

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            spec = await _spec(database, who, file, rate, as_of, model, tenant, refund)
            result = await admin_corrections.dry_run(database, who, month=parse_month(month), spec=spec)
            _show_dry_run(result, as_json)

    run(act)


@app.command(
    epilog="Example: penstock corrections request --month 2026-11 --model llama-3.3-70b --input 0.40 --output 1.20 "
    '--reason "list price typed wrong"'
)
def request(
    month: Month,
    reason: Reason,
    model: Model = None,
    tenant: ForTenant = None,
    input_: Input = None,
    cached_input: Cached = None,
    output: Output = None,
    reasoning: Reasoning = None,
    tier: Tier = "standard",
    as_of: AsOf = None,
    file: File = None,
    refund: Refund = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Ask for a correction; it waits for another person's yes."""
    rate = _rate(model, tier, input_, cached_input, output, reasoning)

    async def act(database: Database, who: Actor) -> object:
        spec = await _spec(database, who, file, rate, as_of, model, tenant, refund)
        return await admin_corrections.request_correction(
            database, who, month=parse_month(month), spec=spec, reason=reason
        )

    perform(act, data_dir, as_json)


async def _decide(
    database: Database, who: Actor, correction_id: UUID, approve: bool, reason: str | None
) -> object:
    return await admin_corrections.decide_correction(
        database, who, correction_id=correction_id, approve=approve, reason=reason
    )


add_decisions(
    app,
    _decide,
    group="corrections",
    what="correction",
    approve="Agree to a correction that another person requested; this books it.",
    reject="Refuse a correction, or take one's own request back.",
)


@app.command(
    epilog='Example: penstock corrections reverse 0199a1b2-0000-7000-8000-000000000000 --reason "it was right"'
)
def reverse(
    correction: CorrectionId, reason: Reason, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Ask to undo an approved correction; another person approves the reversal like a correction."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_corrections.request_reversal(
            database, who, correction_id=parse_id(correction, "correction"), reason=reason
        )

    perform(act, data_dir, as_json)


@app.command("list", epilog="Example: penstock corrections list --month 2026-11 --json")
def list_(
    month: Annotated[str | None, typer.Option(help="Only this month, such as 2026-11.")] = None,
    limit: Annotated[int, typer.Option(help="Rows.", min=1, max=1000)] = 100,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List corrections, the newest first."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_corrections.list_corrections(
            database, who, month=None if month is None else parse_month(month), limit=limit
        )

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock corrections show 0199a1b2-0000-7000-8000-000000000000")
def show(correction: CorrectionId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show a correction and its lines."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            found, lines = await admin_corrections.show_correction(
                database, who, correction_id=parse_id(correction, "correction")
            )
            if as_json:
                emit({"correction": found, "lines": lines}, True)
                return
            emit(found, False)
            emit(lines, False, "Lines")

    run(act)


def _rate(
    model: str | None,
    tier: str,
    input_: str | None,
    cached_input: str | None,
    output: str | None,
    reasoning: str | None,
) -> dict[str, Any] | None:
    """The rate that the options specify; None when they specify none. Raises InvalidRequest."""
    if input_ is None and output is None and cached_input is None and reasoning is None:
        return None
    if model is None or input_ is None or output is None:
        raise typer.BadParameter("a price needs --model, --input and --output")
    amounts = {"input": input_, "cached_input": cached_input, "output": output, "reasoning": reasoning}
    return {
        "model": model,
        "tier": tier,
        **{name: value for name, value in amounts.items() if value is not None},
    }


async def _spec(
    database: Database,
    who: Actor,
    file: Path | None,
    rate: dict[str, Any] | None,
    as_of: str | None,
    model: str | None,
    tenant: str | None,
    refund: bool,
) -> dict[str, Any]:
    """The specification from a file or from the options. Raises InvalidRequest."""
    if file is not None:
        if rate is not None or as_of is not None or model is not None or tenant is not None or refund:
            raise InvalidRequest("--file says everything: leave the other options out")
        return _read(file)
    spec: dict[str, Any] = {"refund": refund}
    tenant_id = None if tenant is None else str(await tenant_id_of(database, who, tenant))
    if tenant_id is not None:
        spec["tenant_id"] = tenant_id
    if model is not None:
        spec["model"] = model
    if rate is not None:
        spec["rates"] = [rate if tenant_id is None else {**rate, "tenant_id": tenant_id}]
    if as_of is not None:
        spec["as_of"] = as_of
    return spec


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise InvalidRequest(f"{file} has more than {MAX_FILE_BYTES} bytes")
        spec = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(spec, dict):
        raise InvalidRequest(f"{file} must hold a JSON object with rates or as_of")
    return spec


def _show_dry_run(result: DryRun, as_json: bool) -> None:
    if as_json:
        emit(result, True)
        return
    emit({"month": result.month, "until": result.until, "delta_usd": result.delta_usd}, False)
    emit(result.tenants, False, "Organisations")
    emit(result.lines, False, "Lines")
