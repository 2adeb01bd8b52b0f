"""Shell users of platform hosts and the people behind them, so that an act and its approval take two people."""

from admin.actor import Actor, require, user_id_of
from admin.audit import record
from admin.transactions import read, write_system
from core.db import Database
from core.errors import Conflict, NotFound, PermissionDenied
from tenants import shell_users
from tenants.names import clean_name
from tenants.roles import PLATFORM_ADMIN, PLATFORM_ROLES
from tenants.shell_users import ShellUser


async def claim(database: Database, actor: Actor, *, name: str) -> ShellUser:
    """Map the shell user `name` to the person who acts, signed in or by token; a person maps only itself.

    Raises Conflict when it is mapped already, PermissionDenied for an actor that is no person.
    """
    require(actor, *PLATFORM_ROLES)
    name = clean_name(name, "name")
    user_id = user_id_of(actor)
    async with write_system(database) as connection:
        if not await shell_users.map_shell_user(connection, name, user_id):
            raise Conflict(
                f"the shell user {name!r} is mapped to a person already; release it first", param="name"
            )
        made = await shell_users.get_shell_user(connection, name)
        if made is None:
            raise LookupError("a mapping just made is not there")
        await record(
            connection,
            actor,
            "shell_user.claim",
            tenant_id=None,
            object_kind="shell_user",
            object_id=name,
            after=made,
        )
    return made


async def release(database: Database, actor: Actor, *, name: str) -> None:
    """Remove a mapping: the person's own, or anybody's for a platform admin who is signed in.

    Raises NotFound, PermissionDenied.
    """
    require(actor, *PLATFORM_ROLES)
    user_id = user_id_of(actor)
    async with write_system(database) as connection:
        before = await shell_users.get_shell_user(connection, name)
        if before is None:
            raise NotFound(f"the shell user {name[:80]!r} is not mapped to a person")
        if before.user_id != user_id and actor.role != PLATFORM_ADMIN:
            raise PermissionDenied("only a platform admin releases the shell user of another person")
        await shell_users.unmap_shell_user(connection, name)
        await record(
            connection,
            actor,
            "shell_user.release",
            tenant_id=None,
            object_kind="shell_user",
            object_id=name,
            before=before,
        )


async def list_all(database: Database, actor: Actor) -> list[ShellUser]:
    """Every shell user that is mapped, by name."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await shell_users.list_shell_users(connection)
