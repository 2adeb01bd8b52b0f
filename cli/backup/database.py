"""The database of a backup: its files by pg_basebackup, and the mark in its ledger."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncpg
from sqlalchemy import text

from cli.backup.manifest import Books
from core.child import die_with_parent
from core.db import Database
from core.embedded import postgres_program
from core.errors import InvalidRequest, Unavailable
from core.settings import without_credentials

STOP_GRACE_S = 10.0
"""Seconds that an interrupted pg_basebackup has to remove what it has written."""
_PROGRESS = re.compile(rb"(\d+)/(\d+) kB")
_ERROR_LINES = 4


async def mark(url: str) -> tuple[Books, str, int]:
    """The mark in the ledger, the revision of the schema, and the server's version, all of one snapshot."""
    connection = await asyncpg.connect(url, timeout=30)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            revision = await connection.fetchval(
                "SELECT version_num FROM alembic_version"
            )  # of the login alone
            await connection.execute("SET LOCAL ROLE penstock_system")
            row = await connection.fetchrow(_MARK)
    except asyncpg.UndefinedTableError:
        raise Unavailable(
            "the database has no Penstock schema; is DATABASE_URL that of the platform?"
        ) from None
    finally:
        await connection.close()
    assert row is not None  # noqa: S101 - it selects from one value
    return Books(row["seal"], row["seal_hash"], row["transfer"]), revision, int(row["server"])


_MARK = """
    SELECT coalesce(s.seq, 0)::bigint AS seal, coalesce(encode(s.hash, 'hex'), '') AS seal_hash,
        coalesce((SELECT max(id) FROM ledger_transfers), 0)::bigint AS transfer,
        current_setting('server_version_num') AS server
    FROM (VALUES (1)) AS one LEFT JOIN LATERAL (SELECT seq, hash FROM ledger_seals ORDER BY seq DESC LIMIT 1) s ON true
"""


async def has_mark(database: Database, books: Books) -> bool:
    """Whether a restored ledger is the same as the one of `books` up to its mark."""
    async with database.system() as connection:
        row = (
            await connection.execute(
                text(
                    "SELECT CAST(:seal AS bigint) = 0 OR EXISTS (SELECT FROM ledger_seals"
                    " WHERE seq = CAST(:seal AS bigint) AND encode(hash, 'hex') = :hash) AS sealed,"
                    " CAST(:transfer AS bigint) = 0 OR EXISTS (SELECT FROM ledger_transfers"
                    " WHERE id = CAST(:transfer AS bigint)) AS newest"
                ),
                {"seal": books.seal, "hash": books.seal_hash, "transfer": books.transfer},
            )
        ).one()
    return bool(row.sealed and row.newest)


async def base_backup(url: str, target: Path, on_progress: Callable[[int, int], None]) -> None:
    """Write the files of the server at `url` into `target`, which is new: base.tar.gz, and pg_wal.tar.gz with the log
    of the backup's time. `on_progress` gets the KiB that are done, and those there are.

    The password is not on the command line, where others could read it. Raises Unavailable with what pg_basebackup
    says.
    """
    address = urlsplit(url)
    command = [
        str(postgres_program("pg_basebackup")), "--pgdata", str(target), "--format=tar", "--gzip", "--progress",
        "--wal-method=stream", "--checkpoint=fast", "--no-password", "--label=penstock",
        "--host", address.hostname or "127.0.0.1", "--port", str(address.port or 5432),
        "--username", unquote(address.username or "penstock"),
    ]  # fmt: skip
    password = unquote(address.password or "")
    env = {**without_credentials(os.environ, "PENSTOCK_"), "PGPASSWORD": password, "LC_ALL": "C"}
    if mode := dict(parse_qsl(address.query)).get("sslmode"):
        env["PGSSLMODE"] = mode
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=env,
        start_new_session=True,
        preexec_fn=die_with_parent(signal.SIGINT),
    )
    try:
        said = await _follow(process, on_progress)
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_GRACE_S)
    if code:
        why = " | ".join(said[-_ERROR_LINES:]) or f"exit code {code}"
        raise Unavailable(f"pg_basebackup failed: {why.replace(password, '***') if password else why}")


async def _follow(process: asyncio.subprocess.Process, on_progress: Callable[[int, int], None]) -> list[str]:
    """Report the progress that pg_basebackup prints; returns its other lines."""
    assert process.stderr is not None  # noqa: S101 - it is a pipe
    said: list[str] = []
    while chunk := await process.stderr.read(4096):
        for part in re.split(rb"[\r\n]+", chunk):
            if found := _PROGRESS.search(part):
                on_progress(int(found[1]), int(found[2]))
            elif part.strip():
                said.append(part.decode(errors="replace").strip())
    return said


def local_server(url: str) -> str:
    """`url` when pg_basebackup can use it. Raises InvalidRequest for a Unix socket or several hosts."""
    address = urlsplit(url)
    if not address.hostname or "," in address.netloc:
        raise InvalidRequest(
            "a backup needs a DATABASE_URL with one host, as postgresql://user:password@host:5432/name"
        )
    return url
