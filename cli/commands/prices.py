"""`penstock prices`: list prices and contract prices."""

from typing import Annotated

import typer

from admin import prices as admin_prices
from admin.actor import Actor
from billing.usage.period import parse_instant
from cli.context import AsJson, DataDir, perform
from cli.tenancy import MaybeReason, Reason, tenant_id_of
from core.db import Database

app = typer.Typer(
    no_args_is_help=True, help="Prices per million tokens: list them, set or schedule a new one."
)

Model = Annotated[str, typer.Argument(help="Name of the model or adapter, as customers write it.")]
ForTenant = Annotated[
    str | None,
    typer.Option("--tenant", help="Short name, name or id: its contract price instead of the list price."),
]


@app.command("list", epilog="Example: penstock prices list --model llama-3.3-70b --history --json")
def list_(
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    tenant: ForTenant = None,
    history: Annotated[bool, typer.Option("--history", help="Ended versions too.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List current and scheduled prices in dollars per million tokens."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await admin_prices.list_prices(
            database, who, model=model, tenant_id=tenant_id, history=history
        )

    perform(act, data_dir, as_json)


@app.command(
    "set", epilog="Example: penstock prices set llama-3.3-70b --input 0.50 --cached-input 0.10 --output 1.60"
)
def set_(
    model: Model,
    input_: Annotated[str, typer.Option("--input", help="Dollars per million input tokens.")],
    output: Annotated[str, typer.Option(help="Dollars per million output tokens.")],
    cached_input: Annotated[str | None, typer.Option(help="Cached input; default: as input.")] = None,
    reasoning: Annotated[str | None, typer.Option(help="Reasoning tokens; default: as output.")] = None,
    tier: Annotated[str, typer.Option(help="priority, standard or batch.")] = "standard",
    tenant: ForTenant = None,
    effective_from: Annotated[
        str | None, typer.Option("--from", help="Date or instant in UTC from which it holds; default: now.")
    ] = None,
    currency: Annotated[str, typer.Option(help="USD; no other is supported.")] = "USD",
    below_cost: Annotated[
        bool, typer.Option("--below-cost", help="Save it although a full host would not be paid for.")
    ] = False,
    reason: MaybeReason = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set or schedule a price; requests that are running keep theirs. An adapter's is its organisation's.

    A price at which a host loses money at full load is only saved with --below-cost.
    """

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await admin_prices.set_price(
            database,
            who,
            model=model,
            tier=tier,
            tenant_id=tenant_id,
            input=input_,
            cached_input=cached_input,
            output=output,
            reasoning=reasoning,
            effective_from=None if effective_from is None else parse_instant(effective_from, "--from"),
            currency=currency,
            reason=reason,
            below_cost=below_cost,
        )

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock prices history llama-3.3-70b --tenant acme-robotics")
def history(
    model: Model, tenant: ForTenant = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show every price a model had, has and will have: ended, current, scheduled, withdrawn."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await admin_prices.list_prices(database, who, model=model, tenant_id=tenant_id, history=True)

    perform(act, data_dir, as_json)


@app.command(
    epilog='Example: penstock prices end llama-3.3-70b --tenant acme-robotics --reason "contract ended"'
)
def end(
    model: Model,
    reason: Reason,
    tier: Annotated[str, typer.Option(help="priority, standard or batch.")] = "standard",
    tenant: ForTenant = None,
    at: Annotated[str | None, typer.Option(help="Date or instant in UTC; default: now.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """End a price book: the list price holds afterwards, and a model without a list price is refused."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await admin_prices.end_price(
            database,
            who,
            model=model,
            tier=tier,
            tenant_id=tenant_id,
            at=None if at is None else parse_instant(at, "--at"),
            reason=reason,
        )

    perform(act, data_dir, as_json)


@app.command(epilog='Example: penstock prices withdraw 12 --reason "typing error"')
def withdraw(
    version: Annotated[
        int, typer.Argument(help="Id of a scheduled price, as `prices list` shows it.", min=1)
    ],
    reason: Reason,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Take back a scheduled price before it begins."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_prices.withdraw_price(database, who, version=version, reason=reason)

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock prices unpriced --json")
def unpriced(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List traffic that was refused for want of a price, and offered models without one; normally nothing."""
    perform(admin_prices.unpriced, data_dir, as_json)
