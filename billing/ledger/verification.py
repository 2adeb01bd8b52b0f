"""Verification of the whole books: the invariants of billing/README.md, and the hash chain from its first link.

Its time grows with the ledger. The close of a month uses billing/ledger/checkpoints.py, which does not.
"""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import audit_chain
from billing.ledger.invariants import BOOK_CHECKS, CHECKPOINT_CHECKS, HOLD_CHECKS, LEDGER_CHECKS
from tenants.scoping import platform_wide


class VerificationResult(msgspec.Struct):
    """The result of a verification; the books are sound when `problems` is empty. Amounts are picodollars."""

    transfers: int
    sealed: int
    unsealed: int
    usage_cost: int
    revenue: int
    problems: list[str]


@platform_wide("the books are verified as a whole")
async def verify(connection: AsyncConnection) -> VerificationResult:
    """Check every invariant in the caller's transaction, which should be REPEATABLE READ on a busy system."""
    problems = await violations(connection, LEDGER_CHECKS | HOLD_CHECKS | BOOK_CHECKS | CHECKPOINT_CHECKS)
    sealed = await _verify_chain(connection, problems)
    problems += await audit_chain.problems(connection)
    totals = (await connection.execute(text(_TOTALS))).one()
    return VerificationResult(
        transfers=totals.transfers,
        sealed=sealed,
        unsealed=totals.unsealed,
        usage_cost=int(totals.usage_cost),
        revenue=int(totals.revenue),
        problems=problems,
    )


async def violations(connection: AsyncConnection, checks: Mapping[str, str]) -> list[str]:
    """What the queries of `checks` (invariants.py) find, each with its facts."""
    return [
        f"{check}: {', '.join(f'{k}={v}' for k, v in row._mapping.items())}"
        for check, statement in checks.items()
        for row in await connection.execute(text(statement))
    ]


_TOTALS = """
    SELECT (SELECT count(*) FROM ledger_transfers) AS transfers,
        (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM ledger_unsealed, unnest(transfers) r) AS unsealed,
        (SELECT coalesce(sum(cost), 0) FROM usage) AS usage_cost,
        (SELECT coalesce(sum(credit - debit), 0) FROM ledger_balances WHERE code = 'revenue') AS revenue
"""


async def _verify_chain(connection: AsyncConnection, problems: list[str]) -> int:
    """Recompute the hash chain from the transfers; returns how many transfers its sound links cover."""
    rows = await connection.stream(text(_CHAIN))
    verifier = _ChainVerifier(problems)
    async for row in rows:
        if not verifier.add_row(row):
            break
    else:
        verifier.finish_link()
    await rows.close()
    return verifier.sealed


_CHAIN = """
    WITH covered AS (
        SELECT seq, hash, transfer_id AS first, transfer_id AS last, true AS single, 1 AS size, audit_seq
        FROM ledger_seals WHERE transfer_id IS NOT NULL
        UNION ALL
        SELECT s.seq, s.hash, lower(r), upper(r) - 1, false, sum(upper(r) - lower(r)) OVER (PARTITION BY s.seq),
            s.audit_seq
        FROM ledger_seals s LEFT JOIN LATERAL unnest(s.transfers) r ON true WHERE s.transfers IS NOT NULL)
    SELECT c.seq, c.hash, c.single, coalesce(c.size, 0) AS size, c.audit_seq,
        (SELECT a.hash FROM audit_chain a WHERE a.seq = c.audit_seq) AS audit_hash,
        t.id, t.at, t.effective_at, t.tenant_id, t.kind, t.debit_account, t.credit_account, t.amount, t.source_id
    FROM covered c
    LEFT JOIN LATERAL (SELECT * FROM ledger_transfers l WHERE l.id BETWEEN c.first AND c.last OFFSET 0) t ON true
    ORDER BY c.seq, t.id
"""


class _ChainVerifier:
    """Verifies the hash chain from transfers in their order, in constant memory.

    `sealed` counts the transfers of sound links; a broken link is added to `problems`.
    """

    def __init__(self, problems: list[str]) -> None:
        self.sealed = 0
        self._problems = problems
        self._previous = b""
        self._seq = 0
        self._link: Row[Any] | None = None
        self._digest = hashlib.sha256()
        self._count = 0

    def add_row(self, row: "Row[Any]") -> bool:
        """Add the next transfer of the chain; False when the chain is broken."""
        if self._link is not None and row.seq != self._link.seq and not self.finish_link():
            return False
        if self._link is None:
            if row.seq != self._seq + 1:
                self._problems.append(f"the chain has a gap at {self._seq + 1}")
                return False
            self._link, self._digest, self._count = row, hashlib.sha256(), 0
        if row.id is not None:
            line = _single_seal_text(row) if row.single else _sealed_text(row)
            self._digest.update(line if self._count == 0 else b"\n" + line)
            self._count += 1
            if row.single:
                self._digest = hashlib.sha256(self._previous + line)
        return True

    def finish_link(self) -> bool:
        """Compare the open link's hash with that of its transfers; False when they differ."""
        link, self._link = self._link, None
        if link is None:
            return True
        found = self._digest.digest()
        if link.audit_seq is not None:
            found = _audit_link(self._previous, link)
        elif not link.single:
            found = hashlib.sha256(self._previous + f"{link.seq}|{self._count}|".encode() + found).digest()
        if self._count != link.size or found != link.hash:
            which = f"transfer {link.id}" if link.single else f"{link.size} transfers from {link.id}"
            if link.audit_seq is not None:
                which = f"the rows of the audit log up to number {link.audit_seq}"
            self._problems.append(
                f"the seal of {which} does not verify (link {link.seq}): one of them or an earlier one was changed, "
                f"added or removed"
            )
            return False
        self._previous, self._seq = found, link.seq
        self.sealed += self._count
        return True


def _audit_link(previous: bytes, link: "Row[Any]") -> bytes:
    """The hash of a link over the audit log; `penstock_audit_link` makes the same."""
    covered = f"{link.seq}|audit|{link.audit_seq}|".encode() + (link.audit_hash or b"")
    return hashlib.sha256(previous + covered).digest()


def _sealed_text(row: "Row[Any]") -> bytes:
    """The text of one transfer that a seal covers; `penstock_sealed_text` builds the same."""
    return (
        f"{row.id}|{_microseconds(row.at)}|{_microseconds(row.effective_at)}|{row.tenant_id}|{row.kind}|"
        f"{row.debit_account}|{row.credit_account}|{int(row.amount)}|{row.source_id}"
    ).encode()


def _single_seal_text(row: "Row[Any]") -> bytes:
    """The sealed text in links of the earlier format, which cover one transfer each."""
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
