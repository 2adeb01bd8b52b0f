"""The promotional credit that each new prepaid organisation gets once. A setting of the platform; 0 until it is set."""

from datetime import timedelta
from uuid import UUID

import msgspec
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger.accounts import parse_usd
from billing.ledger.credits import add_lot
from billing.ledger.tables import credit_grants, starter_credit
from core.errors import InvalidRequest
from core.ids import derived_uuid
from core.money import pico_to_usd
from tenants.scoping import platform_wide

MAX_DAYS = 3650
"""Longest life of the credit."""


class StarterCredit(msgspec.Struct, frozen=True):
    """What a new prepaid organisation gets; "0.00" = nothing."""

    amount_usd: str
    expires_days: int | None
    """Days after which what is left expires; None = never."""


def checked(amount_usd: str, expires_days: int | None) -> StarterCredit:
    """The setting of these values. Raises InvalidRequest."""
    if expires_days is not None and not 1 <= expires_days <= MAX_DAYS:
        raise InvalidRequest(
            f"expires_days must be 1 to {MAX_DAYS}, not {expires_days}; leave it out for no expiry",
            param="expires_days",
        )
    return StarterCredit(pico_to_usd(parse_usd(amount_usd, "amount_usd")), expires_days)


@platform_wide("one setting for the platform")
async def get(connection: AsyncConnection) -> StarterCredit:
    """The setting that holds."""
    row = (
        await connection.execute(select(starter_credit.c.amount, starter_credit.c.expires_days))
    ).one_or_none()
    return StarterCredit("0.00", None) if row is None else StarterCredit(pico_to_usd(int(row[0])), row[1])


async def store(connection: AsyncConnection, value: StarterCredit) -> None:
    """Replace the setting. Organisations that exist get nothing."""
    values = {"amount": parse_usd(value.amount_usd, "amount_usd"), "expires_days": value.expires_days}
    await connection.execute(
        insert(starter_credit).values(values).on_conflict_do_update(index_elements=["id"], set_=values)
    )


async def grant(connection: AsyncConnection, tenant_id: UUID, created_by: str) -> StarterCredit | None:
    """Give a prepaid organisation the starter credit as a promotional lot; once, however often it is called.

    Returns what it got, None when the setting is 0 or it has had its starter credit.
    """
    value = await get(connection)
    amount = parse_usd(value.amount_usd, "amount_usd")
    if amount == 0:
        return None
    now = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    expires_at = None if value.expires_days is None else now + timedelta(days=value.expires_days)
    lot_id = derived_uuid("starter-credit", tenant_id)
    if await _has_lot(connection, tenant_id, lot_id):
        return None
    await add_lot(
        connection,
        lot_id=lot_id,
        tenant_id=tenant_id,
        amount=amount,
        kind="promotional",
        reason="starter credit",
        created_by=created_by,
        expires_at=expires_at,
    )
    return value


async def _has_lot(connection: AsyncConnection, tenant_id: UUID, lot_id: UUID) -> bool:
    found = select(credit_grants.c.id).where(
        credit_grants.c.tenant_id == tenant_id, credit_grants.c.id == lot_id
    )
    return await connection.scalar(found) is not None
