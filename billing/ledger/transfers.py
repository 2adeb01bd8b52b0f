"""Booking transfers and sealing them into the hash chain, by PostgreSQL functions (billing/README.md)."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import Conflict

SEAL_BATCH = 20_000
"""Approximate maximum of the transfers in one link of the chain."""


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
    """Debit one account and credit another (codes of billing/README.md) by `amount` picodollars.

    Runs in the caller's transaction, locks the tenant's billing account and updates its counters. Idempotent by
    (`source_id`, `kind`); returns whether the transfer is new. `effective_at` dates it (None = now). The caller adds a
    lot for credit that the customer gains (billing/ledger/credits.py).

    Raises Conflict when the month of `effective_at` is closed, when the source is booked with other facts, or when open
    holds need the credit. The transaction has then failed and must be rolled back.
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
    """Translate the errors of the booking functions into Conflict with a message."""
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
    """Append up to about SEAL_BATCH unsealed transfers to the hash chain; returns how many.

    One sealer works at a time; others return 0.
    """
    sealed = await connection.execute(text("SELECT penstock_seal(:limit)"), {"limit": SEAL_BATCH})
    return int(sealed.scalar_one())
