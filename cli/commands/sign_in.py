"""`penstock sign-in`: what sign-ins of an organisation, or of the platform's own people, must prove."""

from typing import Annotated

import typer

from admin import identity_providers, sign_in_rules
from admin.actor import Actor
from cli.context import AsJson, DataDir, pepper, perform
from cli.secrets_in import read_secret
from cli.tenancy import MaybeReason, open_db_for_changes, tenant_id_of
from core.db import Database
from core.errors import NotFound
from core.public_addresses import parse_hosts
from core.settings import Settings
from tenants.sign_in_rules import RULES

app = typer.Typer(no_args_is_help=True, help="What sign-ins must prove, and by which identity provider.")
provider = typer.Typer(no_args_is_help=True, help="The identity provider (OpenID Connect).")
app.add_typer(provider, name="provider")

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


@provider.command("show", epilog="Example: penstock sign-in provider show --tenant acme-robotics")
def show_provider(tenant: Tenant = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the identity provider."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        found = await identity_providers.get_provider(database, who, tenant_id=tenant_id)
        if found is None:
            raise NotFound("there is no identity provider; `penstock sign-in provider set` sets one")
        return found

    perform(act, data_dir, as_json)


@provider.command(
    "set",
    epilog="Example: penstock sign-in provider set https://login.acme.example penstock --domain acme.example "
    "--tenant acme-robotics",
)
def set_provider(
    issuer: Annotated[str, typer.Argument(metavar="ISSUER", help="Address of the provider.")],
    client_id: Annotated[str, typer.Argument(metavar="CLIENT_ID", help="What it calls this platform.")],
    domain: Annotated[
        list[str], typer.Option(help="Mail domain of the people who sign in through it. Repeatable.")
    ],
    default_role: Annotated[
        str | None,
        typer.Option(help="Role of an account made at the first sign-in; without it none is made."),
    ] = None,
    keep_secret: Annotated[
        bool, typer.Option("--keep-secret", help="Keep the stored client secret.")
    ] = False,
    tenant: Tenant = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set the identity provider (OpenID Connect). The client secret is asked for, or read from standard input."""
    secret = None if keep_secret else read_secret("client secret")

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await identity_providers.set_provider(
            database,
            who,
            pepper=pepper(data_dir),
            allow_hosts=parse_hosts(Settings().oidc_allow_hosts),
            tenant_id=tenant_id,
            issuer=issuer,
            client_id=client_id,
            client_secret=secret,
            mail_domains=domain,
            default_role=default_role,
        )

    perform(act, data_dir, as_json)


@provider.command("remove", epilog="Example: penstock sign-in provider remove --tenant acme-robotics")
def remove_provider(tenant: Tenant = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Remove the identity provider."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        await identity_providers.remove_provider(database, who, tenant_id=tenant_id)
        return {"removed": True}

    perform(act, data_dir, as_json)
