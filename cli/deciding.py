"""The pair of commands that approves or rejects what another person requested."""

from collections.abc import Awaitable, Callable
from typing import Annotated
from uuid import UUID

import typer

from admin.actor import Actor
from cli.context import AsJson, DataDir, perform
from cli.tenancy import MaybeReason, parse_id
from core.db import Database

Decide = Callable[[Database, Actor, UUID, bool, str | None], Awaitable[object]]
"""Decides the request with an id: True approves it; returns what is shown."""


def add_decisions(
    app: typer.Typer,
    decide: Decide,
    *,
    group: str,
    what: str,
    approve: str,
    reject: str,
    suffix: str = "",
) -> None:
    """Add the commands `approve` and `reject`, with `suffix` in their names, to `app`, which is `penstock GROUP`.

    `what` names the object of the id; `approve` and `reject` are the help texts.
    """
    request_id = Annotated[str, typer.Argument(metavar="ID", help=f"Id of the {what}.")]

    def add(name: str, text: str, *, yes: bool) -> None:
        example = f"Example: penstock {group} {name} 0199a1b2-0000-7000-8000-000000000000"

        @app.command(name, help=text, epilog=example)
        def command(
            request: request_id,
            reason: MaybeReason = None,
            data_dir: DataDir = None,
            as_json: AsJson = False,
        ) -> None:
            async def act(database: Database, who: Actor) -> object:
                return await decide(database, who, parse_id(request, what), yes, reason)

            perform(act, data_dir, as_json)

    add(f"approve{suffix}", approve, yes=True)
    add(f"reject{suffix}", reject, yes=False)
