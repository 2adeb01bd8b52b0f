"""`penstock keys`: API keys."""

import sys
from datetime import timedelta
from typing import Annotated

import msgspec
import typer

from admin import keys as admin_keys
from admin.actor import Actor
from cli.context import AsJson, DataDir, pepper, perform
from cli.tenancy import MaybeReason, TenantRef, open_db_for_changes, parse_id, project_of, tenant_id_of
from core.clock import SystemClock
from core.db import Database
from core.errors import InvalidRequest

app = typer.Typer(no_args_is_help=True, help="API keys: make, revoke, find the owner of a leaked one.")

KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="Id of the key (not the key itself).")]
_MAX_DAYS = 36_500


@app.command("list", epilog="Example: penstock keys list acme-robotics")
def list_(tenant: TenantRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List keys, dead ones included."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await admin_keys.list_keys(database, who, tenant_id=tenant_id)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock keys create acme-robotics --name production --expires-in-days 90")
def create(
    tenant: TenantRef,
    name: Annotated[str, typer.Option(help="What the key is for.")],
    project: Annotated[str, typer.Option(help="Name or id of the project.")] = "default",
    kind: Annotated[
        str, typer.Option(help="live, or test: answered without a model, never billed.")
    ] = "live",
    expires_in_days: Annotated[int | None, typer.Option(help="Leave out for a key that stays.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model it may use; repeat it. Leave out for all.")
    ] = None,
    region: Annotated[
        list[str] | None,
        typer.Option(help="A region that its requests may run in; repeat it. Leave out for any."),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="A class of GPU that they may run on; repeat it. Leave out for any."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown this once."""
    if expires_in_days is not None and not 1 <= expires_in_days <= _MAX_DAYS:
        raise InvalidRequest(f"--expires-in-days must be 1 to {_MAX_DAYS}, not {expires_in_days}")

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        found = await project_of(database, who, tenant_id, project)
        days = None if expires_in_days is None else timedelta(days=expires_in_days)
        created = await admin_keys.create_key(
            database,
            who,
            pepper=pepper(data_dir),
            tenant_id=tenant_id,
            project_id=found.id,
            name=name,
            kind=kind,
            expires_at=None if days is None else SystemClock().now() + days,
            allowed_models=model or None,
            regions=region or None,
            gpus=gpu or None,
        )
        return {"secret": created.secret, **msgspec.to_builtins(created.view)}

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock keys show 0198c0de-7a11-7000-8000-5f2b6c1d9e30")
def show(key_id: KeyId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show one key as far as it may be shown."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_keys.get_key(database, who, key_id=parse_id(key_id, "key"))

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(
    epilog='Example: penstock keys revoke 0198c0de-7a11-7000-8000-5f2b6c1d9e30 --reason "left in a log"'
)
def revoke(
    key_id: KeyId, reason: MaybeReason = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Refuse a key for good and cut its open streams."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_keys.revoke_key(database, who, key_id=parse_id(key_id, "key"), reason=reason)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(
    "client-settings",
    epilog="Example: penstock keys client-settings 0198c0de-7a11-7000-8000-5f2b6c1d9e30 "
    "--cors-origin https://app.example.com",
)
def client_settings(
    key_id: KeyId,
    quota_status: Annotated[
        int, typer.Option(help="Status of answers that money refuses: 402 or 429.")
    ] = 402,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin of browsers that may use it; repeat it. Leave out for none."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Replace what a key's clients see: the status of a used-up quota, and the origins of browsers (CORS)."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_keys.set_client_settings(
            database,
            who,
            key_id=parse_id(key_id, "key"),
            quota_status=quota_status,
            cors_origins=cors_origin,
        )

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock keys find < leaked.txt")
def find(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Whose key is this? Reads it from standard input, so that it stands in no shell history."""
    raw = (
        typer.prompt("key", hide_input=True)
        if sys.stdin.isatty()
        else sys.stdin.buffer.read(1024).decode("utf-8", "replace")
    )

    async def act(database: Database, who: Actor) -> object:
        return await admin_keys.find_key(database, who, pepper=pepper(data_dir), raw=raw)

    perform(act, data_dir, as_json, opening=open_db_for_changes)
