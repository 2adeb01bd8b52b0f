"""`penstock alerts`: budgets and alerts, the endpoints of notices, and sent notices."""

import os
from typing import Annotated, Literal
from uuid import UUID

import typer

from admin import alerts as admin_alerts
from admin.actor import Actor
from cli.context import AsJson, DataDir, pepper, perform
from cli.tenancy import TenantRef, parse_id, project_of, tenant_id_of
from core.db import Database
from core.errors import InvalidRequest
from core.public_addresses import parse_hosts

app = typer.Typer(no_args_is_help=True, help="Budgets and alerts, and where they are sent.")
endpoints = typer.Typer(
    no_args_is_help=True,
    help="Webhook addresses and mailboxes of notices.",
    epilog="Example: penstock alerts endpoints list --tenant acme-robotics",
)
app.add_typer(endpoints, name="endpoints")

ForTenant = Annotated[
    str | None, typer.Option("--tenant", help="Short name, name or id; left out = the platform's own.")
]


@app.command("list", epilog="Example: penstock alerts list acme-robotics --json")
def list_(
    tenant: Annotated[
        str | None, typer.Argument(metavar="[TENANT]", help="Default: all organisations.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List budgets and low-balance alerts with what is spent."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await admin_alerts.list_alerts(database, who, tenant_id=tenant_id)

    perform(act, data_dir, as_json)


@app.command(
    "set", epilog="Example: penstock alerts set acme-robotics --project web --usd 200 --thresholds 50,80,100"
)
def set_(
    tenant: TenantRef,
    kind: Annotated[
        Literal["budget", "low_balance"], typer.Option(help="A monthly budget, or a low balance.")
    ] = "budget",
    usd: Annotated[str | None, typer.Option(help="The budget, or the balance that is low.")] = None,
    project: Annotated[str | None, typer.Option(help="Name or id: a budget of this project.")] = None,
    key: Annotated[str | None, typer.Option(help="Id: a budget of this key.")] = None,
    thresholds: Annotated[
        str | None, typer.Option(help="Percentages with commas; default 50,80,100.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the rule instead.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make, replace or remove a budget of a project or key, thresholds, or a low-balance alert.

    These rules send notices and stop nothing. What stops requests: `penstock credits budget` for the whole
    organisation, `penstock budgets set` for a project, key, end user or tag.
    """

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        scope, scope_id = await _scope(database, who, tenant_id, project, key)
        if remove:
            await admin_alerts.remove_alert(database, who, tenant_id=tenant_id, kind=kind, scope_id=scope_id)
            return await admin_alerts.list_alerts(database, who, tenant_id=tenant_id)
        return await admin_alerts.set_alert(
            database,
            who,
            tenant_id=tenant_id,
            kind=kind,
            scope=scope,
            scope_id=scope_id,
            amount_usd=usd,
            thresholds=_percentages(thresholds),
        )

    perform(act, data_dir, as_json)


async def _scope(
    database: Database, who: Actor, tenant_id: UUID, project: str | None, key: str | None
) -> tuple[Literal["tenant", "project", "key"], UUID]:
    if project is not None and key is not None:
        raise InvalidRequest("a budget is one of a project or of a key, not of both")
    if project is not None:
        return "project", (await project_of(database, who, tenant_id, project)).id
    if key is not None:
        return "key", parse_id(key, "key")
    return "tenant", tenant_id


def _percentages(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip().rstrip("%").strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 4 for part in parts):
        raise InvalidRequest(f"--thresholds must look like 50,80,100, not {text[:40]!r}")
    return [int(part) for part in parts]


@app.command("test", epilog="Example: penstock alerts test --tenant acme-robotics")
def send_test(tenant: ForTenant = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Send a test notice to every endpoint; `penstock alerts notices` shows what became of it."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        await admin_alerts.send_test(database, who, tenant_id=tenant_id)
        return await admin_alerts.list_notices(database, who, tenant_id=tenant_id, limit=1)

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock alerts notices --tenant acme-robotics --json")
def notices(
    tenant: ForTenant = None,
    outbox: Annotated[
        bool,
        typer.Option("--outbox", help="Mail of all organisations that was kept for want of an SMTP server."),
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List what was told and how its deliveries stand, the newest first."""

    async def act(database: Database, who: Actor) -> object:
        if outbox:
            return await admin_alerts.list_outbox(database, who)
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await admin_alerts.list_notices(database, who, tenant_id=tenant_id)

    perform(act, data_dir, as_json)


@endpoints.command("list", epilog="Example: penstock alerts endpoints list --tenant acme-robotics")
def list_endpoints(tenant: ForTenant = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List webhook addresses and mailboxes."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await admin_alerts.list_endpoints(database, who, tenant_id=tenant_id)

    perform(act, data_dir, as_json)


@endpoints.command(
    "add", epilog="Example: penstock alerts endpoints add https://hooks.example.com/p --tenant acme"
)
def add_endpoint(
    target: Annotated[str, typer.Argument(help="https:// address or mail address.")],
    tenant: ForTenant = None,
    kinds: Annotated[str | None, typer.Option(help="Kinds with commas, such as budget.threshold.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Add a webhook address or a mailbox. A webhook's signing secret is printed this once."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await admin_alerts.add_endpoint(
            database,
            who,
            tenant_id=tenant_id,
            channel="webhook" if "://" in target else "email",
            target=target,
            kinds=None if kinds is None else [kind.strip() for kind in kinds.split(",")],
            pepper=pepper(data_dir),
            allow_hosts=parse_hosts(os.environ.get("PENSTOCK_WEBHOOK_ALLOW_HOSTS", "")),
        )

    perform(act, data_dir, as_json)


@endpoints.command(
    "remove", epilog="Example: penstock alerts endpoints remove 0198... --tenant acme-robotics"
)
def remove_endpoint(
    endpoint: Annotated[str, typer.Argument(metavar="ID", help="Id of the endpoint.")],
    tenant: ForTenant = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Send nothing there any more."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        await admin_alerts.remove_endpoint(
            database, who, tenant_id=tenant_id, endpoint_id=parse_id(endpoint, "endpoint")
        )
        return await admin_alerts.list_endpoints(database, who, tenant_id=tenant_id)

    perform(act, data_dir, as_json)
