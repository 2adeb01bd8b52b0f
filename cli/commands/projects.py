"""`penstock projects`: projects of an organisation."""

from typing import Annotated

import typer

from admin import projects as admin_projects
from admin.actor import Actor
from cli.context import AsJson, DataDir, perform
from cli.tenancy import MaybeReason, TenantRef, open_db_for_changes, project_of, tenant_id_of
from core.db import Database

app = typer.Typer(
    no_args_is_help=True, help="Projects: what keys and limits of an organisation are grouped by."
)

ProjectRef = Annotated[str, typer.Argument(metavar="PROJECT", help="Name or id of the project.")]


@app.command("list", epilog="Example: penstock projects list acme-robotics")
def list_(tenant: TenantRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List projects, archived ones included."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await admin_projects.list_projects(database, who, tenant_id=tenant_id)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock projects create acme-robotics support-bot")
def create(
    tenant: TenantRef,
    name: Annotated[str, typer.Argument(help="A name no other project of the organisation has.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a project."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await admin_projects.create_project(database, who, tenant_id=tenant_id, name=name)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock projects archive acme-robotics support-bot")
def archive(
    tenant: TenantRef,
    project: ProjectRef,
    reason: MaybeReason = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a project's keys from now on and cut their streams."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        found = await project_of(database, who, tenant_id, project)
        return await admin_projects.archive_project(
            database, who, tenant_id=tenant_id, project_id=found.id, reason=reason
        )

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock projects restore acme-robotics support-bot")
def restore(
    tenant: TenantRef,
    project: ProjectRef,
    reason: MaybeReason = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Take an archived project into use again."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        found = await project_of(database, who, tenant_id, project)
        return await admin_projects.restore_project(
            database, who, tenant_id=tenant_id, project_id=found.id, reason=reason
        )

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock projects retention acme-robotics support-bot 0")
def retention(
    tenant: TenantRef,
    project: ProjectRef,
    days: Annotated[
        int | None,
        typer.Argument(help="Days for which responses are kept; 0 stores none. Left out: the platform's."),
    ] = None,
    reason: MaybeReason = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set for how long a project keeps responses. Older ones are deleted within a day."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        found = await project_of(database, who, tenant_id, project)
        return await admin_projects.set_retention(
            database, who, tenant_id=tenant_id, project_id=found.id, days=days, reason=reason
        )

    perform(act, data_dir, as_json, opening=open_db_for_changes)
