"""What must hold after every fault (docs/promises.md, 1 to 8), asked of the database itself."""

from collections.abc import Iterable
from typing import Any, Protocol

import asyncpg

from tests.support.load import Seen
from tests.support.waiting import until


class Books(Protocol):
    """A platform whose database can be asked."""

    async def connect(self) -> "asyncpg.Connection[asyncpg.Record]":
        """A connection to it."""


async def settled_everything(stack: Books, tenant_id: str, timeout_s: float = 150.0) -> None:
    """Wait until the tenant has no open hold: everything admitted has been settled or voided."""
    database = await stack.connect()
    try:

        async def no_hold() -> bool:
            return not await database.fetchval(
                "SELECT count(*) FROM holds WHERE tenant_id = $1::uuid AND state = 'open'", tenant_id
            )

        await until(no_hold, timeout_s=timeout_s)
    finally:
        await database.close()


async def rows_by_request(stack: Books, tenant_id: str) -> dict[str, dict[str, Any]]:
    """The tenant's usage rows by request id; fails when a request has two."""
    database = await stack.connect()
    try:
        rows = await database.fetch("SELECT * FROM usage WHERE tenant_id = $1::uuid", tenant_id)
    finally:
        await database.close()
    by_id = {str(row["request_id"]): dict(row) for row in rows}
    assert len(by_id) == len(rows), "a request was billed twice"
    return by_id


async def money_is_sound(stack: Books, tenant_id: str) -> None:
    """The ledger balances, agrees with the account, and the account is not below zero."""
    database = await stack.connect()
    try:
        await _check_money(database, tenant_id)
    finally:
        await database.close()


async def _check_money(database: "asyncpg.Connection[asyncpg.Record]", tenant_id: str) -> None:
    account = await database.fetchrow("SELECT * FROM billing_accounts WHERE tenant_id = $1::uuid", tenant_id)
    assert account is not None
    assert account["balance"] >= 0
    assert account["held"] == 0, "money is still held though no hold is open"
    charged = await database.fetchval(
        "SELECT coalesce(sum(cost), 0) FROM usage WHERE tenant_id = $1::uuid", tenant_id
    )
    granted = await database.fetchval(
        "SELECT coalesce(sum(amount), 0) FROM ledger_transfers WHERE tenant_id = $1::uuid AND kind = 'grant'",
        tenant_id,
    )
    uncollectible = await database.fetchval(
        "SELECT coalesce(sum(amount), 0) FROM ledger_transfers WHERE tenant_id = $1::uuid AND kind = 'uncollectible'",
        tenant_id,
    )
    assert granted - charged + uncollectible == account["balance"]


def admitted(seen: Iterable[Seen]) -> list[Seen]:
    """The requests whose client saw at least one token: those were admitted beyond doubt."""
    return [one for one in seen if one.tokens > 0]
