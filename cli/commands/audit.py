"""`penstock audit`: who changed what, when and why."""

from typing import Annotated

import typer

from admin import audit as admin_audit
from admin.actor import Actor
from cli.context import AsJson, DataDir, perform
from cli.tenancy import open_db_for_changes, parse_id, tenant_id_of
from core.db import Database

app = typer.Typer(no_args_is_help=True, help="The audit log: who changed what, when and why.")


@app.command("list", epilog="Example: penstock audit list --tenant acme-robotics --action key. --json")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Acts on this organisation.")] = None,
    action: Annotated[str | None, typer.Option(help="Beginning of the action, such as key.")] = None,
    object_id: Annotated[
        str | None, typer.Option("--object", help="Acts on the object with this id.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Rows, at most 1000.")] = 50,
    after: Annotated[str | None, typer.Option(help="Continue after the row with this id.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List administrative acts, newest first. The table leaves out what changed; --json has it."""

    async def act(database: Database, who: Actor) -> object:
        rows = await admin_audit.list_audit(
            database,
            who,
            tenant_id=None if tenant is None else await tenant_id_of(database, who, tenant),
            action=action,
            object_id=object_id,
            limit=limit,
            after=None if after is None else parse_id(after, "row"),
        )
        if as_json:
            return rows
        return [
            {
                "at": row.at.isoformat(timespec="seconds"),
                "actor": row.actor_label,
                "action": row.action,
                "object": f"{row.object_kind} {row.object_id}",
                "reason": row.reason,
            }
            for row in rows
        ]

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.callback()
def _group() -> None:
    """Keep `list` a command of a group although it is the only one."""
