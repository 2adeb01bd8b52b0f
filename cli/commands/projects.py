"""`penstock projects`: projects of an organisation."""

from functools import partial
from typing import Annotated

import typer

from admin import projects as admin_projects
from cli.context import AsJson, DataDir
from cli.tenancy import MaybeReason, ProjectRef, TenantRef, on_project, on_tenant

app = typer.Typer(
    no_args_is_help=True, help="Projects: what keys and limits of an organisation are grouped by."
)


@app.command("list", epilog="Example: penstock projects list acme-robotics")
def list_(tenant: TenantRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List projects, archived ones included."""
    on_tenant(admin_projects.list_projects, tenant, data_dir, as_json)


@app.command(epilog="Example: penstock projects create acme-robotics support-bot")
def create(
    tenant: TenantRef,
    name: Annotated[str, typer.Argument(help="A name no other project of the organisation has.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a project."""
    on_tenant(partial(admin_projects.create_project, name=name), tenant, data_dir, as_json)


@app.command(epilog="Example: penstock projects archive acme-robotics support-bot")
def archive(
    tenant: TenantRef,
    project: ProjectRef,
    reason: MaybeReason = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a project's keys from now on and cut their streams."""
    on_project(partial(admin_projects.archive_project, reason=reason), tenant, project, data_dir, as_json)


@app.command(epilog="Example: penstock projects restore acme-robotics support-bot")
def restore(
    tenant: TenantRef,
    project: ProjectRef,
    reason: MaybeReason = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Take an archived project into use again."""
    on_project(partial(admin_projects.restore_project, reason=reason), tenant, project, data_dir, as_json)


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
    change = partial(admin_projects.set_retention, days=days, reason=reason)
    on_project(change, tenant, project, data_dir, as_json)
