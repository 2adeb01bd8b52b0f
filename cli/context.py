"""Shared parts of administrative commands: database, actor, output of results and errors."""

import asyncio
import json
import os
import pwd
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
import typer
from redis.asyncio import Redis
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.main import get_current_context  # type: ignore[attr-defined]  # of the click that typer carries

from admin.actor import Actor
from admin.denials import record_denial
from admin.logins import authenticate_token
from cli.server_errors import database_url, redis_url, server_errors
from core.db import BATCH, Database
from core.errors import PenstockError, Unavailable, WaitsForApproval
from core.redis import connect

T = TypeVar("T")

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Data directory of a running `penstock up`, used without DATABASE_URL."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

DEFAULT_DATA_DIR = ".penstock"

_ACTOR: ContextVar[Actor | None] = ContextVar("actor", default=None)
"""Who acts in the command that runs, for the record of its refusal."""


def run(coro_fn: Callable[[], Awaitable[T]], *, as_json: bool = False) -> T:
    """Run `coro_fn` and return its result. A domain error or an unreachable server exits with code 2.

    An act that waits for another person is no error: its approval is printed (as JSON with `as_json`), and the exit
    code is 0.
    """

    async def call() -> T:
        return await coro_fn()

    try:
        with server_errors():
            return asyncio.run(call())
    except WaitsForApproval as waiting:
        _print_waiting(waiting, as_json)
    except PenstockError as error:
        exit_with_error(error.message)


def _print_waiting(waiting: WaitsForApproval, as_json: bool) -> NoReturn:
    """Print what an act waits for, and exit."""
    if as_json:
        print(json.dumps({"status": "waiting", **waiting.details, "message": waiting.message}, indent=2))
    else:
        approval_id = waiting.details["approval_id"]
        print(f"{waiting.message}; approve it with `penstock approvals approve {approval_id}`")
        if warning := waiting.details.get("warning"):
            warn(warning)
    raise typer.Exit(0)


def warn(message: str) -> None:
    """Print a warning on stderr."""
    print(f"penstock: warning: {message}", file=sys.stderr)


def exit_with_error(message: str) -> NoReturn:
    """Print `message` on stderr and exit with code 2."""
    print(f"penstock: {message}", file=sys.stderr)
    raise typer.Exit(2)


def runtime(data_dir: Path | None) -> dict[str, Any]:
    """The content of runtime.json of a running `penstock up`. Raises Unavailable when there is none."""
    place = data_dir or Path(os.environ.get("PENSTOCK_DATA_DIR") or DEFAULT_DATA_DIR)
    path = place / "runtime.json"
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise Unavailable(
            f"nothing runs in {place} (no runtime.json); start `penstock up`, or set DATABASE_URL and REDIS_URL"
        ) from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"{path} cannot be read: {error}") from None
    return facts


@asynccontextmanager
async def open_db(data_dir: Path | None = None) -> AsyncIterator[Database]:
    """The database of DATABASE_URL, else of the `penstock up` in `data_dir`. Raises InvalidRequest, Unavailable."""
    url = os.environ.get("DATABASE_URL") or str(runtime(data_dir)["database_url"])
    database = Database(database_url(url), name="penstock-cli", pool_size=1, timeouts=BATCH)
    _ACTOR.set(None)
    try:
        yield database
    except PenstockError as error:
        await record_denial(database, _ACTOR.get(), running_command() or "penstock", error)
        raise
    finally:
        await database.close()


@asynccontextmanager
async def open_redis(data_dir: Path | None = None) -> AsyncIterator[Redis]:
    """The Redis of REDIS_URL, else of the `penstock up` in `data_dir`. Raises InvalidRequest, Unavailable."""
    client = connect(redis_url(os.environ.get("REDIS_URL") or str(runtime(data_dir)["redis_url"])))
    try:
        yield client
    finally:
        await client.aclose()


def pepper(data_dir: Path | None = None) -> bytes:
    """The HMAC key of API keys: PENSTOCK_KEY_PEPPER, else of the `penstock up` in `data_dir`. Raises Unavailable."""
    return (os.environ.get("PENSTOCK_KEY_PEPPER") or str(runtime(data_dir)["key_pepper"])).encode()


def os_user() -> str:
    """The name of the process's user id. Ignores LOGNAME and USER, which a user can change to approve own requests."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's uid without a name
        return f"uid-{os.getuid()}"


def running_command() -> str:
    """The command that runs, such as `penstock users disable`, without arguments, which may be secret; else empty."""
    context = get_current_context(silent=True)
    return "" if context is None else " ".join(["penstock", *context.command_path.split()[1:]])


def shell_actor() -> Actor:
    """A platform admin with the OS user's name for the audit log: a shell with the database password has all rights."""
    user = os_user()
    return Actor(kind="cli", id=user, label=user, role="platform_admin", command=running_command())


async def acting(database: Database, data_dir: Path | None) -> Actor:
    """The person whose admin token is in PENSTOCK_ADMIN_TOKEN, with that person's rights; else `shell_actor`.

    Several people may share a shell user, so only the token says who takes part in an act of two people. Raises
    AuthenticationFailed for a token that is not valid, Unavailable.
    """
    secret = os.environ.get("PENSTOCK_ADMIN_TOKEN", "").strip()
    actor = shell_actor()
    if secret:
        found = await authenticate_token(database, secret, pepper=pepper(data_dir))
        actor = msgspec.structs.replace(found, command=running_command())
    _ACTOR.set(actor)
    return actor


def perform(
    act: Callable[[Database, Actor], Awaitable[object]],
    data_dir: Path | None,
    as_json: bool,
    *,
    title: str = "",
    opening: Callable[[Path | None], AbstractAsyncContextManager[Database]] = open_db,
) -> None:
    """Run `act` on the database as the person of `acting`, and print what it returns. Ends as `run` does."""

    async def call() -> None:
        async with opening(data_dir) as database:
            emit(await act(database, await acting(database, data_dir)), as_json, title)

    run(call, as_json=as_json)


def emit(rows: object, as_json: bool, title: str = "") -> None:
    """Print one view or a list of views as a table, or as JSON with exact values."""
    plain = msgspec.to_builtins(rows, str_keys=True)
    if as_json:
        print(json.dumps(plain, indent=2))
        return
    if isinstance(plain, Mapping):
        _print_one(plain, title)
    elif isinstance(plain, Sequence) and not isinstance(plain, str):
        _print_many(plain, title)
    else:
        print(plain)


def _print_one(row: Mapping[str, Any], title: str) -> None:
    table = Table(title=title or None, show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in row.items():
        table.add_row(_heading(name), _cell(value))
    _console().print(table)


def _print_many(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    if not rows:
        _console().print("nothing found")
        return
    table = Table(title=title or None, header_style="bold")
    numeric = {name for name in rows[0] if all(isinstance(row[name], int) for row in rows)}
    for name in rows[0]:
        right = name in numeric or name.endswith("_usd")
        table.add_column(_heading(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    _console().print(table)


def _console() -> Console:
    """A console of the terminal's width; 200 columns in files and pipes, so that ids are not wrapped."""
    return Console() if sys.stdout.isatty() else Console(width=200)


def _heading(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value)) or "-"
    return escape(json.dumps(value) if isinstance(value, dict) else str(value))
