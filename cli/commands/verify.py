"""`penstock verify`: verification of signed statements and receipts."""

from pathlib import Path
from typing import Annotated

import typer

from admin import statements as admin_statements
from billing.statements.verify import MAX_FILE, read_keys, verify, verify_pair
from cli.context import AsJson, DataDir, emit, open_db, run
from core.errors import InvalidRequest

app = typer.Typer()


@app.callback()
def group() -> None:
    """Checks of signed files."""


@app.command(
    "verify", epilog="Example: penstock verify statement-2026-10.json statement-2026-10.pdf --keys keys.json"
)
def verify_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE [FILE]", help="A JSON file, a PDF, or both of one statement."),
    ],
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys", help="Saved /.well-known/penstock-keys.json; default: the platform's database."
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Check the signature of a statement or receipt, offline with --keys. Exit code 2 when it does not hold."""

    async def act() -> None:
        data = [_read(path) for path in files]
        known = await _from_database(data_dir) if keys is None else read_keys(_read(keys))
        if len(data) > 2:
            raise InvalidRequest("give one file, or a JSON file and its PDF")
        found = verify(data[0], known) if len(data) == 1 else verify_pair(data[0], data[1], known)
        facts = {"valid": True, "type": found.type, "key_id": found.key_id, "body_sha256": found.body_sha256}
        for name in ("month", "final", "revision", "request_id", "cost_usd"):
            if found.body is not None and name in found.body:
                facts[name] = found.body[name]
        emit(facts, as_json)

    run(act)


async def _from_database(data_dir: Path | None) -> dict[str, bytes]:
    async with open_db(data_dir) as database:
        rows = await admin_statements.public_keys(database)
    return {row.key_id: bytes.fromhex(row.public_key) for row in rows}


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE + 1)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
