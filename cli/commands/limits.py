"""`penstock limits`: limits of an organisation, a project, a key."""

from typing import Annotated
from uuid import UUID

import msgspec
import typer

from admin import limits as admin_limits
from admin.actor import Actor
from cli.context import AsJson, DataDir, emit, perform
from cli.tenancy import TenantRef, open_db_for_changes, parse_id, project_of, tenant_id_of
from core.db import Database
from core.errors import InvalidRequest
from core.settings import Settings
from tenants.principal import default_limits

app = typer.Typer(no_args_is_help=True, help="Limits: requests, tokens and concurrency, at three levels.")

Project = Annotated[str | None, typer.Option("--project", help="Of this project (name or id).")]
Key = Annotated[str | None, typer.Option("--key", help="Of the key with this id.")]
Value = Annotated[str | None, typer.Option(metavar="N|none", help="A number, or none to lift it.")]


@app.command("list", epilog="Example: penstock limits list acme-robotics")
def list_(tenant: TenantRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List every scope of an organisation that has limits."""

    async def act(database: Database, who: Actor) -> object:
        rows = await admin_limits.list_limits(
            database, who, tenant_id=await tenant_id_of(database, who, tenant)
        )
        return [_row(row.scope_kind, row.scope_id, row.limits) for row in rows]

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock limits defaults --json")
def defaults(as_json: AsJson = False) -> None:
    """Show the limits that new organisations get, from the settings PENSTOCK_DEFAULT_*."""
    emit(msgspec.structs.asdict(default_limits(Settings())), as_json)


@app.command(epilog="Example: penstock limits show acme-robotics --project default")
def show(
    tenant: TenantRef,
    project: Project = None,
    key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the limits of an organisation, or of one of its projects or keys."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id, kind, scope_id = await _scope(database, who, tenant, project, key)
        limits = await admin_limits.get_limits(
            database, who, tenant_id=tenant_id, scope_kind=kind, scope_id=scope_id
        )
        return _row(kind, scope_id, limits)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(
    "set", epilog="Example: penstock limits set acme-robotics --requests-per-min 600 --concurrency none"
)
def set_(
    tenant: TenantRef,
    project: Project = None,
    key: Key = None,
    requests_per_min: Value = None,
    input_tokens_per_min: Value = None,
    output_tokens_per_min: Value = None,
    concurrency: Value = None,
    tokens_per_day: Value = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Change limits; those not named stay as they are."""
    given = {
        "requests_per_min": requests_per_min,
        "input_tokens_per_min": input_tokens_per_min,
        "output_tokens_per_min": output_tokens_per_min,
        "concurrency": concurrency,
        "tokens_per_day": tokens_per_day,
    }
    changes = {name: _number(name, text) for name, text in given.items() if text is not None}
    if not changes:
        raise InvalidRequest("name at least one limit to set, such as --requests-per-min 600")

    async def act(database: Database, who: Actor) -> object:
        tenant_id, kind, scope_id = await _scope(database, who, tenant, project, key)
        present = await admin_limits.get_limits(
            database, who, tenant_id=tenant_id, scope_kind=kind, scope_id=scope_id
        )
        limits = await admin_limits.set_limits(
            database,
            who,
            tenant_id=tenant_id,
            scope_kind=kind,
            scope_id=scope_id,
            limits=msgspec.structs.replace(present, **changes),
        )
        return _row(kind, scope_id, limits)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


async def _scope(
    database: Database, who: Actor, tenant: str, project: str | None, key: str | None
) -> tuple[UUID, str, UUID]:
    """(organisation id, kind, id) of the scope that the options name. Raises InvalidRequest, NotFound, Conflict."""
    if project is not None and key is not None:
        raise InvalidRequest("give --project or --key, not both")
    tenant_id = await tenant_id_of(database, who, tenant)
    if project is not None:
        return tenant_id, "project", (await project_of(database, who, tenant_id, project)).id
    if key is not None:
        return tenant_id, "key", parse_id(key, "key")
    return tenant_id, "tenant", tenant_id


def _number(name: str, text: str) -> int | None:
    if text.strip().lower() == "none":
        return None
    try:
        return int(text.replace("_", ""))
    except ValueError:
        option = "--" + name.replace("_", "-")
        raise InvalidRequest(f"{option} must be a whole number or none, not {text!r}") from None


def _row(kind: str, scope_id: UUID, limits: msgspec.Struct) -> dict[str, object]:
    return {"scope": kind, "scope_id": str(scope_id), **msgspec.structs.asdict(limits)}
