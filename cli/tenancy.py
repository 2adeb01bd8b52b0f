"""Shared parts of commands on tenancy: a database that announces changes, and look-ups by name or id."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol
from uuid import UUID

import typer

from admin import projects as admin_projects
from admin import tenants as admin_tenants
from admin import users as admin_users
from admin.actor import Actor
from cli.context import open_db, open_redis, perform
from core.db import Database
from core.errors import InvalidRequest, NotFound, Unavailable
from tenants.changes import announce
from tenants.views import ProjectView, UserView

TenantRef = Annotated[
    str, typer.Argument(metavar="TENANT", help="Short name, name or id of the organisation.")
]
ProjectRef = Annotated[str, typer.Argument(metavar="PROJECT", help="Name or id of the project.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stands in the audit log.")]
MaybeReason = Annotated[str | None, typer.Option("--reason", help="Why; it stands in the audit log.")]


class TenantAct(Protocol):
    """An act of admin/ on an organisation; its other arguments are bound (`functools.partial`)."""

    def __call__(self, database: Database, actor: Actor, /, *, tenant_id: UUID) -> Awaitable[object]:
        """Return what is printed."""


class ProjectAct(Protocol):
    """An act of admin/ on a project; its other arguments are bound (`functools.partial`)."""

    def __call__(
        self, database: Database, actor: Actor, /, *, tenant_id: UUID, project_id: UUID
    ) -> Awaitable[object]:
        """Return what is printed."""


def on_tenant(act: TenantAct, tenant: str, data_dir: Path | None, as_json: bool) -> None:
    """Find the organisation `tenant`, do `act` on it, and print what it returns. Ends as `run` does."""

    async def call(database: Database, who: Actor) -> object:
        return await act(database, who, tenant_id=await tenant_id_of(database, who, tenant))

    perform(call, data_dir, as_json, opening=open_db_for_changes)


def on_project(act: ProjectAct, tenant: str, project: str, data_dir: Path | None, as_json: bool) -> None:
    """Find the project `project` of the organisation `tenant`, do `act` on it, and print what it returns."""

    async def call(database: Database, who: Actor, /, *, tenant_id: UUID) -> object:
        found = await project_of(database, who, tenant_id, project)
        return await act(database, who, tenant_id=tenant_id, project_id=found.id)

    on_tenant(call, tenant, data_dir, as_json)


@asynccontextmanager
async def open_db_for_changes(data_dir: Path | None) -> AsyncIterator[Database]:
    """The database; each change is announced to API processes through Redis. Without Redis they see it within 2 s.

    Raises InvalidRequest, Unavailable.
    """
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_db(data_dir))
        try:
            redis = await stack.enter_async_context(open_redis(data_dir))
            database.after_change = partial(announce, redis)
        except Unavailable:
            database.after_change = None
        yield database


def parse_id(text: str, what: str) -> UUID:
    """`text` as an id of a `what`, such as "key". Raises InvalidRequest."""
    try:
        return UUID(text)
    except ValueError:
        raise InvalidRequest(f"{text!r} is no id of a {what}; `list` shows the ids") from None


async def tenant_id_of(database: Database, actor: Actor, text: str) -> UUID:
    """The id of the organisation with the short name, name or id `text`. Raises NotFound, Conflict when ambiguous."""
    return (await admin_tenants.find_tenant(database, actor, text=text)).id


async def project_of(database: Database, actor: Actor, tenant_id: UUID, text: str) -> ProjectView:
    """The organisation's project with this name or id. Raises NotFound."""
    for project in await admin_projects.list_projects(database, actor, tenant_id=tenant_id):
        if text in (project.name, str(project.id)):
            return project
    raise NotFound(f"the organisation has no project {text!r}; `penstock projects list` shows them")


async def user_of(database: Database, actor: Actor, text: str) -> UserView:
    """The person with this e-mail address or id. Raises NotFound."""
    after: UUID | None = None
    while users := await admin_users.list_users(database, actor, after=after):
        for user in users:
            if text.strip().lower() in (user.email, str(user.id)):
                return user
        after = users[-1].id
    raise NotFound(f"there is no user {text!r}; `penstock users list` shows them")
