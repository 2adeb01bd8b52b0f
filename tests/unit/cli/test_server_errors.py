"""Mistakes about servers end in one line and code 2."""

import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy.exc import DBAPIError, ProgrammingError

from cli.server_errors import database_url, redis_url, server_errors
from core.errors import InvalidRequest, Unavailable

ROOT = Path(__file__).resolve().parents[3]
NOBODY = "postgresql://user:geheim@127.0.0.1:1/name"


@pytest.mark.parametrize(
    "text", ["rubbish", "mysql://h/d", "postgresql://", "postgresql://h:port/d", "http://h"]
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="DATABASE_URL"):
        database_url(text)
    with pytest.raises(InvalidRequest, match="REDIS_URL"):
        redis_url(text)


def test_addresses_pass_as_they_are() -> None:
    assert database_url(NOBODY) == NOBODY
    assert redis_url("redis://:secret@h:1/0") == "redis://:secret@h:1/0"


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connect call failed"),
        asyncpg.InvalidPasswordError("password authentication failed"),
        asyncpg.InvalidCatalogNameError('database "x" does not exist'),
        ProgrammingError("", {}, asyncpg.InvalidCatalogNameError('database "x" does not exist')),
    ],
)
def test_a_server_that_does_not_answer_is_told(error: Exception) -> None:
    with pytest.raises(Unavailable, match="does not answer as expected"), server_errors():
        raise error


def test_a_database_without_a_schema_names_the_command_and_a_bug_stays_a_bug() -> None:
    with pytest.raises(Unavailable, match="penstock migrate"), server_errors():
        raise ProgrammingError("SELECT", {}, asyncpg.UndefinedTableError('relation "x" does not exist'))
    with pytest.raises(ProgrammingError), server_errors():
        raise ProgrammingError("SELEC", {}, asyncpg.PostgresSyntaxError("syntax error"))


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.QueryCanceledError("canceling statement due to statement timeout"),
        asyncpg.LockNotAvailableError("canceling statement due to lock timeout"),
    ],
)
def test_a_statement_that_was_ended_for_its_time_says_to_try_again(error: Exception) -> None:
    with pytest.raises(Unavailable, match="nothing was changed, try again"), server_errors():
        raise DBAPIError("UPDATE", {}, error)


@pytest.mark.parametrize("url", ["", "rubbish", NOBODY])
@pytest.mark.parametrize("command", [["migrate"], ["tenants", "list"], ["usage", "report"]], ids=" ".join)
def test_commands_end_with_one_line_and_code_2(command: list[str], url: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "cli.main", *command],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url, "REDIS_URL": "", "PENSTOCK_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "geheim" not in result.stderr
