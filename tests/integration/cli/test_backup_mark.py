"""The mark in the ledger by which a restore knows that its books are those of the backup."""

import pytest

from cli.backup.database import has_mark, mark
from cli.backup.manifest import Books
from core.db import Database


async def test_a_ledger_has_its_own_mark_and_no_other(database: Database, pg_url: str) -> None:
    books, revision, server = await mark(pg_url)
    assert (books.seal, books.transfer) == (0, 0)
    assert revision
    assert server // 10_000 == 18
    assert await has_mark(database, books)


@pytest.mark.parametrize(
    "books", [Books(0, "", 3_000_000_000), Books(3_000_000_000, "ab", 0), Books(1, "00", 0)]
)
async def test_a_mark_that_is_not_there_is_missed_whatever_its_size(database: Database, books: Books) -> None:
    assert not await has_mark(database, books)
