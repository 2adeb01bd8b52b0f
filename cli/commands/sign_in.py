"""`penstock sign-in`: what sign-ins of an organisation, or of the platform's own people, must prove."""

from typing import Annotated

import typer

from admin import sign_in_rules
from admin.actor import Actor
from cli.context import AsJson, DataDir, perform
from cli.tenancy import MaybeReason, open_db_for_changes, tenant_id_of
from core.db import Database
from tenants.sign_in_rules import RULES

app = typer.Typer(no_args_is_help=True, help="What sign-ins must prove.")

Tenant = Annotated[
    str | None,
    typer.Option(metavar="TENANT", help="Of this organisation; without it, of the platform's own people."),
]


@app.command(epilog="Example: penstock sign-in show --tenant acme-robotics")
def show(tenant: Tenant = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the present rule."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await sign_in_rules.get_rule(database, who, tenant_id=tenant_id)

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock sign-in require second_factor --tenant acme-robotics")
def require(
    rule: Annotated[str, typer.Argument(metavar="RULE", help=f"One of {', '.join(RULES)}.")],
    tenant: Tenant = None,
    reason: MaybeReason = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set the rule; sessions and tokens that were proved by less end at once.

    In a shell without PENSTOCK_ADMIN_TOKEN it works although no admin can sign in.
    """

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await sign_in_rules.set_rule(database, who, tenant_id=tenant_id, rule=rule, reason=reason)

    perform(act, data_dir, as_json, opening=open_db_for_changes)
