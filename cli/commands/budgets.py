"""`penstock budgets`: monthly budgets of projects and keys, which stop requests."""

from typing import Annotated
from uuid import UUID

import typer

from admin import budgets as admin_budgets
from admin.actor import Actor
from billing.metering.scope_budgets import BudgetScope
from cli.context import AsJson, DataDir, acting, emit, open_db, run
from cli.tenancy import TenantRef, parse_id, project_of, tenant_id_of
from core.db import Database
from core.errors import InvalidRequest

app = typer.Typer(
    no_args_is_help=True,
    help="Monthly budgets of projects and keys, which stop requests. That of an organisation: penstock credits budget.",
)


@app.command("list", epilog="Example: penstock budgets list acme-robotics --json")
def list_(tenant: TenantRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the budgets of an organisation's projects and keys, with what is spent and held."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            tenant_id = await tenant_id_of(database, who, tenant)
            emit(await admin_budgets.list_budgets(database, who, tenant_id=tenant_id), as_json)

    run(act)


@app.command("set", epilog="Example: penstock budgets set acme-robotics 50 --project default")
def set_(
    tenant: TenantRef,
    usd: Annotated[str, typer.Argument(metavar="USD|none", help="Dollars a UTC month, or none to lift it.")],
    project: Annotated[str | None, typer.Option("--project", help="Of this project (name or id).")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Of the key with this id.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set or lift the budget of a project or key; requests beyond it get 402. Shows all budgets."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            tenant_id = await tenant_id_of(database, who, tenant)
            scope, scope_id = await _scope(database, who, tenant_id, project, key)
            budgets = await admin_budgets.set_budget(
                database,
                who,
                tenant_id=tenant_id,
                scope=scope,
                scope_id=scope_id,
                usd=None if usd.lower() == "none" else usd,
            )
            emit(budgets, as_json)

    run(act)


async def _scope(
    database: Database, who: Actor, tenant_id: UUID, project: str | None, key: str | None
) -> tuple[BudgetScope, UUID]:
    """What the options name. Raises InvalidRequest, NotFound."""
    if project is not None and key is None:
        return "project", (await project_of(database, who, tenant_id, project)).id
    if key is not None and project is None:
        return "key", parse_id(key, "key")
    raise InvalidRequest(
        "give --project or --key; the budget of the whole organisation is `penstock credits budget`"
    )
