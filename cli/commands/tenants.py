"""`penstock tenants`: organisations."""

from functools import partial
from typing import Annotated

import typer

from admin import tenants as admin_tenants
from admin.actor import Actor
from admin.tenants import BillingMode
from cli.context import AsJson, DataDir, perform
from cli.tenancy import MaybeReason, Reason, TenantRef, on_tenant, open_db_for_changes
from core.db import Database
from core.errors import InvalidRequest
from core.settings import Settings
from tenants.principal import default_limits

app = typer.Typer(no_args_is_help=True, help="Organisations: make, rename, suspend, resume, throttle.")


@app.command("list", epilog="Example: penstock tenants list --json")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List organisations, oldest first."""
    perform(admin_tenants.list_tenants, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog='Example: penstock tenants create "Acme Robotics" --billing prepaid')
def create(
    name: Annotated[str, typer.Argument(help="Name for people; the short name is made of it.")],
    tier: Annotated[str, typer.Option(help="priority, standard or batch.")] = "standard",
    billing: Annotated[str, typer.Option(help="prepaid or postpaid.")] = "prepaid",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make an organisation with a project "default" and the default limits (`penstock limits defaults`)."""
    mode = _mode(billing)

    settings = Settings()

    async def act(database: Database, who: Actor) -> object:
        return await admin_tenants.create_tenant(
            database,
            who,
            name=name,
            tier=tier,
            billing_mode=mode,
            limits=default_limits(settings),
        )

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock tenants show acme-robotics")
def show(tenant: TenantRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show one organisation."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_tenants.find_tenant(database, who, text=tenant)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog='Example: penstock tenants rename acme-robotics "Acme Robots"')
def rename(
    tenant: TenantRef,
    name: Annotated[str, typer.Argument(help="The new name; the short name stays.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Give an organisation another name."""
    on_tenant(partial(admin_tenants.rename_tenant, name=name), tenant, data_dir, as_json)


@app.command("tier", epilog='Example: penstock tenants tier acme-robotics priority --reason "contract 12"')
def set_tier(
    tenant: TenantRef,
    tier: Annotated[str, typer.Argument(help="priority, standard or batch.")],
    reason: Reason,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Move an organisation to another tier: another band of the queue, other prices. Takes two people."""
    on_tenant(partial(admin_tenants.set_tier, tier=tier, reason=reason), tenant, data_dir, as_json)


@app.command(
    "highest-tier",
    epilog='Example: penstock tenants highest-tier acme-robotics priority --reason "contract 12"',
)
def set_highest_tier(
    tenant: TenantRef,
    tier: Annotated[str, typer.Argument(help="priority, standard, batch, or own for its tier.")],
    reason: Reason,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Let requests of an organisation ask for a tier above its own, at that tier's prices. Takes two people."""
    highest = None if tier == "own" else tier
    change = partial(admin_tenants.set_highest_tier, tier=highest, reason=reason)
    on_tenant(change, tenant, data_dir, as_json)


@app.command("share", epilog='Example: penstock tenants share acme-robotics 200 --reason "contract 12"')
def set_share(
    tenant: TenantRef,
    percent: Annotated[int, typer.Argument(help="1 to 10000; 100 is the usual.")],
    reason: Reason,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Change what an organisation gets of busy pools beside others of its tier."""
    on_tenant(partial(admin_tenants.set_share, percent=percent, reason=reason), tenant, data_dir, as_json)


@app.command(epilog='Example: penstock tenants suspend acme-robotics --reason "unpaid since May"')
def suspend(tenant: TenantRef, reason: Reason, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Refuse all keys of an organisation and cut its open streams."""
    on_tenant(partial(admin_tenants.suspend_tenant, reason=reason), tenant, data_dir, as_json)


@app.command(epilog="Example: penstock tenants resume acme-robotics")
def resume(
    tenant: TenantRef, reason: MaybeReason = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Let a suspended organisation work again."""
    on_tenant(partial(admin_tenants.resume_tenant, reason=reason), tenant, data_dir, as_json)


@app.command(
    epilog='Example: penstock tenants throttle acme-robotics --minutes 60 --reason "floods the queue"'
)
def throttle(
    tenant: TenantRef,
    reason: Reason,
    minutes: Annotated[int, typer.Option(help="For how long; 0 lifts a throttle.")] = 60,
    requests_per_min: Annotated[int, typer.Option(help="Requests a minute, at most.")] = 60,
    concurrency: Annotated[int, typer.Option(help="Requests open at the same time, at most.")] = 4,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Cap an organisation's requests for a while."""
    change = partial(
        admin_tenants.throttle_tenant,
        minutes=minutes,
        requests_per_min=requests_per_min,
        concurrency=concurrency,
        reason=reason,
    )
    on_tenant(change, tenant, data_dir, as_json)


def _mode(text: str) -> BillingMode:
    if text == "prepaid":
        return "prepaid"
    if text == "postpaid":
        return "postpaid"
    raise InvalidRequest(f"--billing must be prepaid or postpaid, not {text!r}")
