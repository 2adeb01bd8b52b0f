"""The ledger's proofs: that the books balance, that nobody changed them, and that holds and accounts agree.

The chart of accounts and the invariants stand in billing/README.md. Entries are made by the PostgreSQL functions
(`penstock_settle`, `penstock_grant`); here they are sealed and verified.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.book_checks import BOOK_CHECKS
from core.errors import Conflict

SEAL_BATCH = 20_000
"""Transfers that one link of the chain covers, at most about."""


class Books(msgspec.Struct):
    """What a verification found; sound when `problems` is empty. Amounts are picodollars."""

    transfers: int
    sealed: int
    unsealed: int
    usage_cost: int
    revenue: int
    problems: list[str]


async def book(
    connection: AsyncConnection,
    kind: str,
    tenant_id: UUID,
    debit: str,
    credit: str,
    amount: int,
    source_id: UUID,
    effective_at: datetime | None = None,
) -> bool:
    """Book `amount` picodollars from the account `debit` to `credit` (codes of billing/README.md), in the caller's
    transaction; the tenant's billing account stays locked and follows. Idempotent by (source_id, kind): returns
    whether the transfer is new. Credit that a customer gains through it must become a lot (billing/credits.py).

    Raises Conflict: the month of `effective_at` is closed, the source is booked with other facts, or the credit is
    needed by open holds. The transaction is then spoilt and must be rolled back.
    """
    with booking_errors():
        booked = await connection.execute(
            text("SELECT penstock_book(:kind, :tenant_id, :debit, :credit, :amount, :source, :effective)"),
            {
                "kind": kind,
                "tenant_id": tenant_id,
                "debit": debit,
                "credit": credit,
                "amount": amount,
                "source": source_id,
                "effective": effective_at,
            },
        )
    return bool(booked.scalar_one())


@contextmanager
def booking_errors() -> Iterator[None]:
    """Turn the refusals of the books' functions into Conflict, in words."""
    try:
        yield
    except DBAPIError as error:
        code = getattr(error.orig, "sqlstate", None)
        if code == "PS001":
            raise Conflict(
                "the accounting month is closed: book it now, as a dated adjustment", code="period_closed"
            ) from error
        if code == "PS002":
            raise Conflict(str(error.orig), code="booking_conflict") from error
        if code == "23514" and "billing_accounts" in str(error.orig):
            raise Conflict("the credit left is not enough, or open requests hold it") from error
        raise


async def seal(connection: AsyncConnection) -> int:
    """Put waiting transfers into the hash chain; returns how many. Only one sealer works at a time."""
    sealed = await connection.execute(text("SELECT penstock_seal(:limit)"), {"limit": SEAL_BATCH})
    return int(sealed.scalar_one())


async def verify(connection: AsyncConnection) -> Books:
    """Check every invariant in the caller's transaction (best REPEATABLE READ on a busy system)."""
    problems: list[str] = []
    for check, statement in (_CHECKS | BOOK_CHECKS).items():
        for row in await connection.execute(text(statement)):
            problems.append(f"{check}: {', '.join(f'{k}={v}' for k, v in row._mapping.items())}")
    sealed = await _verify_chain(connection, problems)
    totals = (await connection.execute(text(_TOTALS))).one()
    return Books(
        transfers=totals.transfers,
        sealed=sealed,
        unsealed=totals.unsealed,
        usage_cost=int(totals.usage_cost),
        revenue=int(totals.revenue),
        problems=problems,
    )


_TOTALS = """
    SELECT (SELECT count(*) FROM ledger_transfers) AS transfers,
        (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM ledger_unsealed, unnest(transfers) r) AS unsealed,
        (SELECT coalesce(sum(cost), 0) FROM usage) AS usage_cost,
        (SELECT coalesce(sum(credit - debit), 0) FROM ledger_balances WHERE code = 'revenue') AS revenue
"""

_CHECKS = {
    "trial balance does not close": """
        SELECT sum(debit) AS debit, sum(credit) AS credit FROM ledger_balances HAVING sum(debit) <> sum(credit)""",
    "a transfer touches another tenant's account": """
        SELECT t.id FROM ledger_transfers t
        JOIN ledger_accounts d ON d.id = t.debit_account JOIN ledger_accounts c ON c.id = t.credit_account
        WHERE d.tenant_id <> t.tenant_id OR c.tenant_id <> t.tenant_id""",
    "prepaid balance differs from the ledger": """
        SELECT b.tenant_id, b.balance, coalesce(l.credit - l.debit, 0) AS ledger FROM billing_accounts b
        LEFT JOIN ledger_balances l ON l.tenant_id = b.tenant_id AND l.code = 'credit'
        WHERE b.balance <> coalesce(l.credit - l.debit, 0)""",
    "owed amount differs from the ledger": """
        SELECT b.tenant_id, b.owed, coalesce(l.debit - l.credit, 0) AS ledger FROM billing_accounts b
        LEFT JOIN ledger_balances l ON l.tenant_id = b.tenant_id AND l.code = 'receivable'
        WHERE b.owed <> coalesce(l.debit - l.credit, 0)""",
    "usage and its transfers differ": """
        SELECT coalesce(u.request_id, t.source_id) AS request_id, u.cost, t.amount
        FROM usage u FULL JOIN (
            SELECT source_id, sum(amount) AS amount FROM ledger_transfers
            WHERE kind IN ('usage', 'uncollectible') AND NOT EXISTS (
                SELECT 1 FROM adjustments a WHERE a.id = ledger_transfers.source_id)
            GROUP BY source_id) t ON t.source_id = u.request_id
        WHERE coalesce(u.cost, 0) <> coalesce(t.amount, 0) AND NOT (u.request_id IS NULL AND EXISTS (
            SELECT 1 FROM usage_archives a, ledger_transfers l WHERE a.dropped_at IS NOT NULL
                AND l.source_id = t.source_id AND l.kind IN ('usage', 'uncollectible')
                AND l.effective_at >= a.month::timestamp AT TIME ZONE 'UTC'
                AND l.effective_at < (a.month + interval '1 month') AT TIME ZONE 'UTC'))""",
    "an archived month and its transfers differ": """
        SELECT a.month, a.cost, sum(t.amount) AS amount FROM usage_archives a
        LEFT JOIN ledger_transfers t ON t.kind IN ('usage', 'uncollectible')
            AND NOT EXISTS (SELECT 1 FROM adjustments x WHERE x.id = t.source_id)
            AND t.effective_at >= a.month::timestamp AT TIME ZONE 'UTC'
            AND t.effective_at < (a.month + interval '1 month') AT TIME ZONE 'UTC'
        WHERE a.dropped_at IS NOT NULL GROUP BY a.month, a.cost HAVING a.cost <> coalesce(sum(t.amount), 0)""",
    "held money differs from the open holds": """
        SELECT b.tenant_id, b.held, b.open_holds, h.amount, h.holds FROM billing_accounts b
        LEFT JOIN (SELECT tenant_id, sum(amount) AS amount, count(*) AS holds FROM holds
            WHERE state = 'open' GROUP BY tenant_id) h ON h.tenant_id = b.tenant_id
        WHERE b.held <> coalesce(h.amount, 0) OR b.open_holds <> coalesce(h.holds, 0)""",
    "a settled request's hold is still open": """
        SELECT h.request_id FROM holds h JOIN usage u ON u.request_id = h.request_id WHERE h.state = 'open'""",
    "transfers are sealed or waiting more than once": """
        WITH c AS (SELECT transfers FROM ledger_seals WHERE transfers IS NOT NULL
            UNION ALL SELECT int8multirange(int8range(transfer_id, transfer_id, '[]')) FROM ledger_seals
                WHERE transfer_id IS NOT NULL
            UNION ALL SELECT transfers FROM ledger_unsealed),
        n AS (SELECT (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM c, unnest(c.transfers) r) AS entries,
            (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM unnest((SELECT range_agg(transfers) FROM c)) r)
                AS transfers)
        SELECT entries, transfers FROM n WHERE entries <> transfers""",
    "a transfer is neither sealed nor waiting": """
        WITH covered AS MATERIALIZED (SELECT coalesce(range_agg(c.transfers), '{}') AS ids FROM (
            SELECT transfers FROM ledger_seals WHERE transfers IS NOT NULL
            UNION ALL SELECT int8multirange(int8range(transfer_id, transfer_id, '[]')) FROM ledger_seals
                WHERE transfer_id IS NOT NULL
            UNION ALL SELECT transfers FROM ledger_unsealed) c)
        SELECT t.id FROM ledger_transfers t, covered c WHERE NOT c.ids @> t.id""",
}
"""What must never return a row, by what it means when it does."""


async def _verify_chain(connection: AsyncConnection, problems: list[str]) -> int:
    """Recompute the hash chain from the transfers; returns how many transfers its sound links cover."""
    rows = await connection.stream(text(_CHAIN))
    chain = _Chain(problems)
    async for row in rows:
        if not chain.take(row):
            break
    else:
        chain.end_link()
    await rows.close()
    return chain.sealed


_CHAIN = """
    WITH covered AS (
        SELECT seq, hash, transfer_id AS first, transfer_id AS last, true AS single, 1 AS size
        FROM ledger_seals WHERE transfer_id IS NOT NULL
        UNION ALL
        SELECT s.seq, s.hash, lower(r), upper(r) - 1, false, sum(upper(r) - lower(r)) OVER (PARTITION BY s.seq)
        FROM ledger_seals s, unnest(s.transfers) r WHERE s.transfers IS NOT NULL)
    SELECT c.seq, c.hash, c.single, c.size, t.id, t.at, t.effective_at, t.tenant_id, t.kind, t.debit_account,
        t.credit_account, t.amount, t.source_id
    FROM covered c LEFT JOIN ledger_transfers t ON t.id BETWEEN c.first AND c.last ORDER BY c.seq, t.id
"""


class _Chain:
    """The hash chain while its transfers pass by in order; memory does not grow with them."""

    def __init__(self, problems: list[str]) -> None:
        self.sealed = 0
        self._problems = problems
        self._previous = b""
        self._seq = 0
        self._link: Row[Any] | None = None
        self._digest = hashlib.sha256()
        self._count = 0

    def take(self, row: "Row[Any]") -> bool:
        """The next transfer; False when the chain is broken."""
        if self._link is not None and row.seq != self._link.seq and not self.end_link():
            return False
        if self._link is None:
            if row.seq != self._seq + 1:
                self._problems.append(f"the chain has a gap at {self._seq + 1}")
                return False
            self._link, self._digest, self._count = row, hashlib.sha256(), 0
        if row.id is not None:
            line = _old_text(row) if row.single else _text(row)
            self._digest.update(line if self._count == 0 else b"\n" + line)
            self._count += 1
            if row.single:
                self._digest = hashlib.sha256(self._previous + line)
        return True

    def end_link(self) -> bool:
        """All transfers of the open link have passed; False when its hash is not what they give."""
        link, self._link = self._link, None
        if link is None:
            return True
        found = self._digest.digest()
        if not link.single:
            found = hashlib.sha256(self._previous + f"{link.seq}|{self._count}|".encode() + found).digest()
        if self._count != link.size or found != link.hash:
            which = f"transfer {link.id}" if link.single else f"{link.size} transfers from {link.id}"
            self._problems.append(
                f"the seal of {which} does not verify (link {link.seq}): one of them or an earlier one was changed, "
                f"added or removed"
            )
            return False
        self._previous, self._seq = found, link.seq
        self.sealed += self._count
        return True


def _text(row: "Row[Any]") -> bytes:
    """What a seal covers of one transfer; `penstock_sealed_text` builds the same."""
    return (
        f"{row.id}|{_microseconds(row.at)}|{_microseconds(row.effective_at)}|{row.tenant_id}|{row.kind}|"
        f"{row.debit_account}|{row.credit_account}|{int(row.amount)}|{row.source_id}"
    ).encode()


def _old_text(row: "Row[Any]") -> bytes:
    """The same in links that cover one transfer, written before links covered many."""
    fields = [
        row.seq,
        row.id,
        _microseconds(row.at),
        row.tenant_id,
        row.kind,
        row.debit_account,
        row.credit_account,
    ]
    fields += [int(row.amount), row.source_id]
    if row.effective_at != row.at:
        fields.append(_microseconds(row.effective_at))
    return "|".join(map(str, fields)).encode()


def _microseconds(at: datetime) -> int:
    """Unix time in microseconds, exactly."""
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds
