"""`penstock users second-factor`: authenticator apps (TOTP) and their backup codes."""

import sys
from pathlib import Path
from typing import Annotated, TypeVar

import segno
import typer

from admin import second_factor
from admin.actor import Actor
from admin.logins import right_password
from cli.context import AsJson, DataDir, emit, pepper, perform, run
from cli.secrets_in import SHELL, ask_code, read_secret
from cli.tenancy import MaybeReason, open_db_for_changes, user_of
from core.db import Database

app = typer.Typer(no_args_is_help=True, help="Second factors: codes of an authenticator app at sign-in.")

T = TypeVar("T")
Email = Annotated[str, typer.Argument(help="Your mail address.")]


@app.command(epilog="Example: penstock users second-factor enrol ada@example.com")
def enrol(email: Email, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Enrol an authenticator app: shows a QR code and a secret, asks for a first code, and shows your backup codes.

    Your password is asked for, or read from standard input, and the code from its next line.
    """
    password = read_secret("password")

    async def act() -> None:
        async with open_db_for_changes(data_dir) as database:
            right = await right_password(database, email, password, address=SHELL)
            made = await second_factor.begin_enrolment(
                database, right, pepper=pepper(data_dir), address=SHELL
            )
            if sys.stderr.isatty():
                segno.make(made.uri, micro=False).terminal(out=sys.stderr, compact=True)
            print(f"secret: {made.secret}\n{made.uri}", file=sys.stderr, flush=True)
            done = await second_factor.confirm_enrolment(database, right, ask_code(data_dir), address=SHELL)
            emit({"backup_codes": done.backup_codes}, as_json)

    run(act, as_json=as_json)


@app.command("backup-codes", epilog="Example: penstock users second-factor backup-codes ada@example.com")
def backup_codes(email: Email, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Make new backup codes, show them this once, and end all earlier ones. Asks for your password and a code."""

    codes = _with_code(second_factor.renew_backup_codes, email, data_dir)
    emit({"backup_codes": codes}, as_json)


@app.command(epilog="Example: penstock users second-factor disable ada@example.com")
def disable(email: Email, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Sign in with your password alone from now on. Asks for your password and a code."""

    _with_code(second_factor.disable, email, data_dir)
    emit({"second_factor": False}, as_json)


@app.command(epilog="Example: penstock users second-factor remove ada@example.com --reason 'phone lost'")
def remove(
    user: Annotated[str, typer.Argument(metavar="USER", help="Mail address or id of the person.")],
    reason: MaybeReason = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Remove the second factor of a person who lost it; the person's sessions and tokens end."""

    async def act(database: Database, who: Actor) -> object:
        found = await user_of(database, who, user)
        return await second_factor.remove_for(database, who, user_id=found.id, reason=reason)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


def _with_code(act: second_factor.CodeAct[T], email: str, data_dir: Path | None) -> T:
    """Ask for password and code, and do `act`."""
    password, code = read_secret("password"), ask_code(data_dir)

    async def call() -> T:
        async with open_db_for_changes(data_dir) as database:
            right = await right_password(database, email, password, address=SHELL)
            return await act(database, right, code, address=SHELL)

    return run(call)
