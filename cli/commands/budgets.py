"""`penstock budgets`: monthly budgets of projects, keys, end users and tags, which stop requests."""

from typing import Annotated
from uuid import UUID

import typer

from admin import budgets as admin_budgets
from admin.actor import Actor
from billing.metering.label_budgets import EVERY_END_USER, label_of
from billing.metering.scope_budgets import BudgetScope
from cli.context import AsJson, DataDir, perform
from cli.tenancy import TenantRef, parse_id, project_of, tenant_id_of
from core.db import Database
from core.errors import InvalidRequest

app = typer.Typer(
    no_args_is_help=True,
    help="Monthly budgets of projects, keys, end users and tags, which stop requests. "
    "That of an organisation: penstock credits budget.",
)


@app.command("list", epilog="Example: penstock budgets list acme-robotics --json")
def list_(tenant: TenantRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the budgets of an organisation's projects, keys, end users and tags, with what is spent and held."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await admin_budgets.list_budgets(database, who, tenant_id=tenant_id)

    perform(act, data_dir, as_json)


@app.command("set", epilog="Example: penstock budgets set acme-robotics 50 --project default")
def set_(
    tenant: TenantRef,
    usd: Annotated[str, typer.Argument(metavar="USD|none", help="Dollars a UTC month, or none to lift it.")],
    project: Annotated[str | None, typer.Option("--project", help="Of this project (name or id).")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Of the key with this id.")] = None,
    end_user: Annotated[str | None, typer.Option("--end-user", help="Of this end user.")] = None,
    every_end_user: Annotated[
        bool, typer.Option("--every-end-user", help="Of each end user without a budget of its own.")
    ] = False,
    tag: Annotated[str | None, typer.Option("--tag", help="Of this tag: tag_NAME=VALUE.")] = None,
    notify_only: Annotated[
        bool, typer.Option("--notify-only", help="Of an end user or tag: send notices, stop nothing.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set or lift the budget of a project, key, end user or tag; requests beyond it get 402. Shows all budgets."""
    given = sum(one is not None for one in (project, key, end_user, tag)) + every_end_user

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        amount = None if usd.lower() == "none" else usd
        if given != 1:
            raise InvalidRequest(
                "give one of --project, --key, --end-user, --every-end-user and --tag; "
                "the budget of the whole organisation is `penstock credits budget`"
            )
        label = _label(end_user, tag, every=every_end_user)
        if label is not None:
            return await admin_budgets.set_label_budget(
                database, who, tenant_id=tenant_id, label=label, usd=amount, stops=not notify_only
            )
        if notify_only:
            raise InvalidRequest(
                "--notify-only is for end users and tags; for a project or key: penstock alerts set"
            )
        scope, scope_id = await _scope(database, who, tenant_id, project, key)
        return await admin_budgets.set_budget(
            database, who, tenant_id=tenant_id, scope=scope, scope_id=scope_id, usd=amount
        )

    perform(act, data_dir, as_json)


def _label(end_user: str | None, tag: str | None, *, every: bool) -> str | None:
    """The label that the options name; None for a project or key. Raises InvalidRequest."""
    if every:
        return EVERY_END_USER
    if end_user is not None:
        return label_of("end_user", end_user)
    return None if tag is None else label_of("tag", tag)


async def _scope(
    database: Database, who: Actor, tenant_id: UUID, project: str | None, key: str | None
) -> tuple[BudgetScope, UUID]:
    """The project or key that the options name. Raises InvalidRequest, NotFound."""
    if project is not None:
        return "project", (await project_of(database, who, tenant_id, project)).id
    return "key", parse_id(key or "", "key")
