"""Booking transfers and sealing them into the hash chain. PostgreSQL functions make every entry (billing/README.md)."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import Conflict

SEAL_BATCH = 20_000
"""Transfers that one link of the chain covers, at most about."""


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
    whether the transfer is new. Credit that a customer gains through it must become a lot (billing/ledger/credits.py).

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
