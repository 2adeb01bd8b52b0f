"""`penstock statements`: signed monthly statements, receipts, and their public keys."""

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from admin import statements as admin_statements
from admin.actor import Actor
from billing.ledger.months import parse_month
from cli.commands.roles import load_settings
from cli.context import DEFAULT_DATA_DIR, AsJson, DataDir, acting, emit, open_db, perform, run
from cli.tenancy import Reason, TenantRef, parse_id, tenant_id_of
from core.db import Database
from core.errors import InvalidRequest
from core.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Signed statements, receipts, and their keys.")

Month = Annotated[str, typer.Argument(metavar="MONTH", help="Such as 2026-10.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="File or folder to write to; default: the current folder.")
]


def signing_settings(data_dir: Path | None) -> Settings:
    """Settings with the signing key: that of the environment, else that of the data directory."""
    place = data_dir or Path(os.environ.get("PENSTOCK_DATA_DIR") or DEFAULT_DATA_DIR)
    return load_settings({"data_dir": place})


def write(path: Path, data: bytes) -> None:
    """Write a file. Raises InvalidRequest when that fails."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from None


@app.command("list", epilog="Example: penstock statements list acme-robotics")
def list_(tenant: TenantRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the final statements of an organisation."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await admin_statements.list_statements(database, who, tenant_id=tenant_id)

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock statements get acme-robotics 2026-10 --format pdf --out statements/")
def get(
    tenant: TenantRef,
    month: Month,
    format_: Annotated[
        Literal["json", "pdf", "both"], typer.Option("--format", help="What to write.")
    ] = "both",
    again: Annotated[
        bool, typer.Option("--again", help="Issue a new revision if something changed.")
    ] = False,
    out: Out = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a month's signed statement as JSON and PDF; a draft while the month is open."""

    async def act() -> None:
        settings = signing_settings(data_dir)
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            tenant_id = await tenant_id_of(database, who, tenant)
            made = await admin_statements.get_statement(
                database,
                who,
                settings=settings,
                tenant_id=tenant_id,
                month=parse_month(month),
                again=again,
            )
        place = out or Path()
        stem = f"statement-{made.month}{'' if made.final else '-draft'}"
        files = []
        for kind, data in (("json", made.document), ("pdf", made.pdf)):
            if format_ in (kind, "both"):
                path = place / f"{stem}.{kind}" if place.is_dir() else place.with_suffix(f".{kind}")
                write(path, data)
                files.append(str(path))
        emit({"month": made.month, "final": made.final, "revision": made.revision, "files": files}, as_json)

    run(act)


@app.command(epilog="Example: penstock statements receipt acme-robotics 0198c0de-... --out receipt.json")
def receipt(
    tenant: TenantRef,
    request: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="x-request-id of the answer.")],
    out: Out = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show, or write, the signed receipt of one request."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            tenant_id = await tenant_id_of(database, who, tenant)
            paper = await admin_statements.get_receipt(
                database,
                who,
                settings=signing_settings(data_dir),
                tenant_id=tenant_id,
                request_id=parse_id(request, "request"),
            )
        if out is not None:
            path = out / f"receipt-{request}.json" if out.is_dir() else out
            write(path, paper)
            emit({"file": str(path)}, as_json)
            return
        found = msgspec.json.decode(paper)
        emit(found if as_json else found["body"], as_json)

    run(act)


@app.command(epilog="Example: penstock statements keys --json > penstock-keys.json")
def keys(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the public keys; with --json in the form of /.well-known/penstock-keys.json."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            rows = await admin_statements.public_keys(database)
        emit({"keys": msgspec.to_builtins(rows)} if as_json else rows, as_json)

    run(act)


@app.command("rotate-key", epilog='Example: penstock statements rotate-key --reason "yearly"')
def rotate_key(reason: Reason, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Make a new signing key in the data directory; the old one retires and still verifies."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_statements.rotate_key(
            database, who, settings=signing_settings(data_dir), reason=reason
        )

    perform(act, data_dir, as_json)


@app.command("retire-key", epilog='Example: penstock statements retire-key 3f2a... --reason "it leaked"')
def retire_key(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="As `penstock statements keys` shows it.")],
    reason: Reason,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Let a key sign nothing more; what it has signed still verifies."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_statements.retire_key(database, who, key_id=key_id, reason=reason)

    perform(act, data_dir, as_json)
