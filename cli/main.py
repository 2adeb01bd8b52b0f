"""The `penstock` command: its groups are imported only when one of them is used."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
import typer.main
from typer.core import TyperGroup

from core.errors import PenstockError

# In the order of --help.
_COMMANDS = (
    ("up", "up"),
    ("migrate", "roles"),
    ("api", "roles"),
    ("scheduler", "roles"),
    ("agent", "roles"),
    ("jobs", "roles"),
    ("console", "roles"),
    ("backup", "backup"),
    ("restore", "backup"),
    ("verify", "verify"),
    ("stripe-sim", "sim.stripe"),
)
_GROUPS = (
    "tenants", "projects", "keys", "limits", "users", "sign-in", "prices", "credits", "budgets", "starter-credit",
    "usage", "models", "adapters", "pools", "hosts", "host", "engine", "audit", "contracts", "adjustments", "approvals",
    "ledger", "alerts", "statements", "sla", "exports", "invoices", "periods", "corrections", "economics", "reconcile",
    "payments", "maintenance", "config", "sim",
)  # fmt: skip


class _LazyGroup(TyperGroup):
    """Imports a command from cli/commands/ by its name when it is used."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # typer's own context class
        """Names of all commands and groups."""
        del ctx
        return [name for name, _ in _COMMANDS] + list(_GROUPS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> object:  # type: ignore[override]  # as above
        """Import the command or group `cmd_name`; None when there is none."""
        del ctx
        single = dict(_COMMANDS).get(cmd_name)
        if single is not None:
            app = import_module(f"cli.commands.{single}").app
            return typer.main.get_group(app).commands[cmd_name]
        if cmd_name in _GROUPS:
            group = typer.main.get_group(import_module(_module(cmd_name)).app)
            group.name = cmd_name
            return group
        return None


def _module(group: str) -> str:
    return "cli.commands.sim.group" if group == "sim" else f"cli.commands.{group.replace('-', '_')}"


app = typer.Typer(
    cls=_LazyGroup,
    name="penstock",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Penstock: multi-tenant LLM inference, metered to the token.",
    epilog="Start with: penstock up",
)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="TOML file with settings; the environment has precedence [PENSTOCK_CONFIG].",
            show_default=False,
        ),
    ] = None,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"penstock {installed('penstock')}")
        raise typer.Exit
    if "--help" not in sys.argv:
        from cli.configuration import read_configuration  # pydantic: too slow for --help

        # A host of an older image is told settings of newer platforms, which its agent does not know.
        ctx.obj = read_configuration(os.environ, config, strict=ctx.invoked_subcommand != "agent")
        ctx.obj.apply(os.environ)


def main() -> None:
    """Entry point. A domain error prints one line on stderr and exits with code 2."""
    try:
        app()
    except PenstockError as error:
        print(f"penstock: {error.message}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
