"""`penstock users`: people, roles, tokens of the admin REST."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from admin import sessions as admin_sessions
from admin import users as admin_users
from admin.access_review import list_access, to_file
from admin.actor import Actor, user_id_of
from admin.logins import SignIn, TokenLives, complete, right_password, wrong_credentials
from admin.recovery import make_recovery_code, recover_password
from cli.commands import second_factor
from cli.context import AsJson, DataDir, acting, emit, pepper, perform, run
from cli.secrets_in import SHELL, ask_code, read_secret
from cli.tenancy import open_db_for_changes, parse_id, tenant_id_of, user_of
from core.db import Database
from core.settings import Settings
from tenants.roles import ALL_ROLES
from tenants.token_scopes import ALL_SCOPES, DEFAULT_SCOPES

app = typer.Typer(no_args_is_help=True, help="People: make, role, password, tokens of the admin REST.")
app.add_typer(second_factor.app, name="second-factor")

UserRef = Annotated[str, typer.Argument(metavar="USER", help="Mail address or id of the person.")]
Email = Annotated[str, typer.Argument(help="Your mail address.")]
RoleName = Annotated[str, typer.Argument(metavar="ROLE", help=f"One of {', '.join(ALL_ROLES)}.")]


@app.command("list", epilog="Example: penstock users list --tenant acme-robotics")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Of this organisation only.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List people with their roles."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await admin_users.list_users(database, who, tenant_id=tenant_id)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(
    "access-review", epilog="Example: penstock users access-review --tenant acme-robotics > review.csv"
)
def access_review(
    tenant: Annotated[str | None, typer.Option(help="Of this organisation only.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print every person, token, open session and key as CSV: what it may do, how they sign in, the last use."""

    async def call() -> None:
        async with open_db_for_changes(data_dir) as database:
            who = await acting(database, data_dir)
            tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
            rows = await list_access(database, who, tenant_id=tenant_id)
            sys.stdout.buffer.write(to_file(rows, "json" if as_json else "csv"))

    run(call)


@app.command(epilog="Example: penstock users create ada@example.com tenant_owner --tenant acme-robotics")
def create(
    email: Annotated[str, typer.Argument(help="Mail address to sign in with.")],
    role: RoleName,
    tenant: Annotated[str | None, typer.Option(help="Organisation of a tenant role.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a person. The password is asked for, or read from standard input."""
    password = read_secret("password", confirm=True)

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await admin_users.create_user(
            database, who, email=email, password=password, role=role, tenant_id=tenant_id
        )

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command("role", epilog="Example: penstock users role ada@example.com tenant_developer")
def set_role(user: UserRef, role: RoleName, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Give a person another role in the same organisation, or on the platform."""

    async def act(database: Database, who: Actor) -> object:
        found = await user_of(database, who, user)
        return await admin_users.set_role(database, who, user_id=found.id, role=role)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock users password ada@example.com")
def password(user: UserRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Give a person a new password: asked for, or read from standard input."""
    new = read_secret("password", confirm=True)

    async def act(database: Database, who: Actor) -> object:
        found = await user_of(database, who, user)
        return await admin_users.reset_password(database, who, user_id=found.id, password=new)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock users disable ada@example.com")
def disable(user: UserRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """End a person's sign-ins and tokens."""

    async def act(database: Database, who: Actor) -> object:
        found = await user_of(database, who, user)
        return await admin_users.disable_user(database, who, user_id=found.id)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock users enable ada@example.com")
def enable(user: UserRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Let a disabled person in again."""

    async def act(database: Database, who: Actor) -> object:
        found = await user_of(database, who, user)
        return await admin_users.enable_user(database, who, user_id=found.id)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock users token ada@example.com --name terraform")
def token(
    email: Email,
    name: Annotated[str, typer.Option(help="What the token is for.")],
    scope: Annotated[
        str, typer.Option(help=f"Highest of {', '.join(ALL_SCOPES)}; each includes those before it.")
    ] = DEFAULT_SCOPES[-1],
    days: Annotated[
        int | None, typer.Option(help="Days until it ends; PENSTOCK_TOKEN_DAYS (90) when not given.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a token of the admin REST that acts as you, and show it this once.

    Your password is asked for, or read from standard input, and a code where you have a second factor, in a line of its
    own. In PENSTOCK_ADMIN_TOKEN the token tells commands who you are.
    """
    secret = read_secret("password")

    async def act() -> None:
        async with open_db_for_changes(data_dir) as database:
            signed_in = await _signed_in(database, email, secret, data_dir)
            created = await admin_users.create_admin_token(
                database,
                signed_in.actor,
                pepper=pepper(data_dir),
                user_id=user_id_of(signed_in.actor),
                signed_in=signed_in,
                name=name,
                scopes=[scope],
                days=days,
                lives=TokenLives.of(Settings()),
            )
            emit({"secret": created.secret, **msgspec.to_builtins(created.view)}, as_json)

    run(act)


@app.command("recovery-code", epilog="Example: penstock users recovery-code ada@example.com")
def recovery_code(email: Email, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Make your recovery code, show it this once, and end an earlier one. Keep it where only you find it.

    Your password is asked for, or read from standard input, and a code where you have a second factor.
    """
    secret = read_secret("password")

    async def act() -> None:
        async with open_db_for_changes(data_dir) as database:
            who = (await _signed_in(database, email, secret, data_dir)).actor
            emit({"recovery_code": await make_recovery_code(database, who)}, as_json)

    run(act)


@app.command(epilog="Example: penstock users recover ada@example.com")
def recover(email: Email, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Set a new password by your recovery code; your sessions and tokens end.

    The code and the password are asked for, or read from standard input, a line each.
    """
    code, new = read_secret("recovery code").strip(), read_secret("new password", confirm=True)

    async def act() -> None:
        async with open_db_for_changes(data_dir) as database:
            changed = await recover_password(database, email=email, code=code, password=new, address=SHELL)
            emit(changed, as_json)

    run(act)


@app.command(epilog="Example: penstock users tokens ada@example.com")
def tokens(user: UserRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List a person's tokens, dead ones included."""

    async def act(database: Database, who: Actor) -> object:
        found = await user_of(database, who, user)
        return await admin_users.list_admin_tokens(database, who, user_id=found.id)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(
    "revoke-token", epilog="Example: penstock users revoke-token 0198c0de-7a11-7000-8000-5f2b6c1d9e30"
)
def revoke_token(
    token_id: Annotated[str, typer.Argument(metavar="TOKEN_ID", help="Id of the token.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a token for good."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_users.revoke_admin_token(database, who, token_id=parse_id(token_id, "token"))

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(epilog="Example: penstock users sessions ada@example.com")
def sessions(user: UserRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List a person's open sessions, of the console and over REST."""

    async def act(database: Database, who: Actor) -> object:
        found = await user_of(database, who, user)
        return await admin_sessions.list_sessions(database, who, user_id=found.id)

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command("end-session", epilog="Example: penstock users end-session 0198c0de-7a11-7000-8000-5f2b6c1d9e30")
def end_session(
    session_id: Annotated[str, typer.Argument(metavar="SESSION_ID", help="Id of the session.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """End a session at once."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_sessions.revoke_session(database, who, session_id=parse_id(session_id, "session"))

    perform(act, data_dir, as_json, opening=open_db_for_changes)


async def _signed_in(database: Database, email: str, password: str, data_dir: Path | None) -> SignIn:
    """The person with this mail address and password; asks for a code where there is a second factor.

    Raises AuthenticationFailed.
    """
    right = await right_password(database, email, password, address=SHELL)
    code = ask_code(data_dir) if right.needs_code else None
    signed_in = await complete(database, right, address=SHELL, code=code)
    if signed_in is None:
        raise wrong_credentials()
    return signed_in
