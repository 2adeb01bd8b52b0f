"""`penstock config`: settings, where they come from, and what is wrong with them."""

import ast
import asyncio
import inspect
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Annotated

import typer
from alembic.script import ScriptDirectory
from pydantic import SecretStr
from sqlalchemy import text

from cli.configuration import Configuration, Source, read_settings, secret_variables, variables
from cli.context import AsJson, emit, exit_with_error
from cli.required_settings import Role, text_of
from cli.server_errors import server_errors
from cli.settings_check import problems
from core.db import BATCH, Database
from core.errors import InvalidRequest, PenstockError
from core.redis import connect
from core.services import alembic_config
from core.settings import Settings

app = typer.Typer(help="Settings: list them, check them before anything starts.", no_args_is_help=True)

_SET = "(set)"
"""Shown in place of a secret."""


@app.command("list", epilog="Example: penstock config list --json")
def list_(as_json: AsJson = False) -> None:
    """List every setting: its name in the file, its variable, its default, and what it is for."""
    described, named = _descriptions(), variables()
    rows = [
        {
            "setting": name,
            "variable": named[name],
            "default": _shown(name, field.default),
            "description": described[name],
        }
        for name, field in Settings.model_fields.items()
    ]
    emit(rows, as_json, title="Settings")


@app.command("check", epilog="Example: penstock --config penstock.toml config check --role api --connect")
def check(
    ctx: typer.Context,
    role: Annotated[
        Role | None, typer.Option("--role", help="Check also that this role has all that it needs.")
    ] = None,
    connect_: Annotated[
        bool, typer.Option("--connect", help="Connect to PostgreSQL and Redis, and compare the schema.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the settings that are not at their default and where each comes from, and check all. Starts nothing.

    Exit code 2 when something is wrong.
    """
    settings, wrong = read_settings()
    shown = []
    if settings is not None:
        shown = _given(settings, ctx.find_root().obj)
        wrong = problems(settings, role)
        if connect_ and not wrong:
            wrong = asyncio.run(_unreachable(settings))
    if as_json:
        emit({"settings": shown, "problems": wrong}, as_json=True)
    else:
        emit(shown, as_json=False, title="Settings that are not at their default")
        for line in wrong:
            typer.echo(f"- {line}")
    if wrong:
        exit_with_error(f"{len(wrong)} of the settings cannot be used")


def _given(settings: Settings, configuration: Configuration) -> list[dict[str, str]]:
    """The settings that a source gives, without secrets."""
    return [
        {"setting": name, "value": _shown(name, getattr(settings, name)), "source": str(source)}
        for name, variable in variables().items()
        if (source := configuration.sources.get(variable, Source.DEFAULT)) is not Source.DEFAULT
    ]


def _shown(name: str, value: object) -> str:
    """A value for people; of a secret only whether it is set."""
    if isinstance(value, SecretStr) or variables()[name] in secret_variables():
        return _SET if text_of(value) else ""
    return "" if value is None else str(value)


def _descriptions() -> dict[str, str]:
    """What each setting is for, by name: the text below it in core/settings.py."""
    [class_] = ast.parse(inspect.getsource(Settings)).body
    body = class_.body if isinstance(class_, ast.ClassDef) else []
    found = {}
    for statement, after in pairwise(body):
        match statement, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(description))),
            ):
                found[name] = " ".join(description.split())
    return found


async def _unreachable(settings: Settings) -> list[str]:
    """What PostgreSQL and Redis say against being used."""
    asked: list[tuple[str, Callable[[Settings], Awaitable[None]]]] = [
        ("DATABASE_URL", _ask_postgresql),
        ("REDIS_URL", _ask_redis),
    ]
    found = []
    for variable, ask in asked:
        try:
            with server_errors():
                await ask(settings)
        except PenstockError as error:
            found.append(f"{variable}: {error.message}")
    return found


async def _ask_postgresql(settings: Settings) -> None:
    """Raise PenstockError when the database does not answer, or its schema is not that of this version."""
    if not settings.database_url:
        return
    newest = ScriptDirectory.from_config(alembic_config(settings.database_url)).get_current_head()
    database = Database(settings.database_url, name="penstock-config", pool_size=1, timeouts=BATCH)
    try:
        async with database.engine.connect() as connection:
            found = await connection.scalar(text("SELECT version_num FROM alembic_version"))
    finally:
        await database.close()
    if found != newest:
        raise InvalidRequest(
            f"its schema is {found}, and this version of Penstock needs {newest}; run `penstock migrate`"
        )


async def _ask_redis(settings: Settings) -> None:
    """Raise PenstockError or RedisError when Redis does not answer."""
    if not settings.redis_url:
        return
    client = connect(settings.redis_url)
    try:
        await client.ping()
    finally:
        await client.aclose()
