"""Repository of second factors and their backup codes. Each function runs in the caller's transaction, by user id."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec
from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.tables import backup_codes, second_factors

MAX_WRONG_CODES = 100
"""Wrong codes of a person in a row: the bound of NIST SP 800-63B, section 5.2.2."""


class SecondFactor(msgspec.Struct, frozen=True):
    """The stored second factor of a person."""

    sealed_secret: bytes
    last_step: int
    """The time step of the last code that was accepted: it and earlier ones work no more."""
    confirmed: bool
    """Whether a code has shown that the person has the secret; sign-ins ask for codes from then on."""

    def __repr__(self) -> str:
        """Without the secret, so that no log can show it."""
        return f"SecondFactor(confirmed={self.confirmed})"


async def find(connection: AsyncConnection, user_id: UUID, *, lock: bool = False) -> SecondFactor | None:
    """The second factor of a person, locked when `lock`, so that no two sign-ins use one code; None without one."""
    statement = select(
        second_factors.c.sealed_secret, second_factors.c.last_step, second_factors.c.confirmed_at
    ).where(second_factors.c.user_id == user_id)
    if lock:
        statement = statement.with_for_update()
    row = (await connection.execute(statement)).one_or_none()
    if row is None:
        return None
    return SecondFactor(row.sealed_secret, row.last_step, row.confirmed_at is not None)


async def has(connection: AsyncConnection, user_id: UUID) -> bool:
    """Whether sign-ins of a person ask for a code."""
    found = await find(connection, user_id)
    return found is not None and found.confirmed


async def put_unconfirmed(connection: AsyncConnection, user_id: UUID, sealed_secret: bytes) -> None:
    """Store a new secret in place of one that was never confirmed."""
    values = {"sealed_secret": sealed_secret, "created_at": func.now(), "last_step": 0}
    await connection.execute(
        pg_insert(second_factors)
        .values(user_id=user_id, **values)
        .on_conflict_do_update(
            index_elements=["user_id"], set_=values, where=second_factors.c.confirmed_at.is_(None)
        )
    )


async def confirm(connection: AsyncConnection, user_id: UUID) -> None:
    """Ask for codes from now on."""
    await connection.execute(
        update(second_factors).where(second_factors.c.user_id == user_id).values(confirmed_at=func.now())
    )


async def use_step(connection: AsyncConnection, user_id: UUID, step: int) -> None:
    """Note that the code of a time step was accepted."""
    await connection.execute(
        update(second_factors).where(second_factors.c.user_id == user_id).values(last_step=step)
    )


async def count_code(connection: AsyncConnection, user_id: UUID) -> bool:
    """Count a code as wrong; False when too many were before it. True also without a confirmed second factor."""
    counted = await connection.scalar(
        update(second_factors)
        .where(second_factors.c.user_id == user_id, second_factors.c.confirmed_at.is_not(None))
        .values(wrong_codes=func.least(second_factors.c.wrong_codes + 1, MAX_WRONG_CODES + 1))
        .returning(second_factors.c.wrong_codes)
    )
    return counted is None or counted <= MAX_WRONG_CODES


async def note_wrong_code(connection: AsyncConnection, user_id: UUID, window: timedelta) -> int | None:
    """The wrong codes in a row when they are to be recorded: once within `window`, and at the bound; else None."""
    last = second_factors.c.wrong_recorded_at
    count: int | None = await connection.scalar(
        update(second_factors)
        .where(
            second_factors.c.user_id == user_id,
            or_(last.is_(None), last <= func.now() - window, second_factors.c.wrong_codes >= MAX_WRONG_CODES),
        )
        .values(wrong_recorded_at=func.now())
        .returning(second_factors.c.wrong_codes)
    )
    return count


async def forget_wrong_codes(connection: AsyncConnection, user_id: UUID) -> None:
    """Begin to count again, after a right code."""
    await connection.execute(
        update(second_factors).where(second_factors.c.user_id == user_id).values(wrong_codes=0)
    )


async def remove(connection: AsyncConnection, user_id: UUID) -> None:
    """Delete a second factor with its backup codes."""
    await connection.execute(delete(second_factors).where(second_factors.c.user_id == user_id))


async def replace_backup_codes(connection: AsyncConnection, user_id: UUID, hashes: Sequence[bytes]) -> None:
    """Store the hashes of new backup codes in place of all earlier ones."""
    await connection.execute(delete(backup_codes).where(backup_codes.c.user_id == user_id))
    await connection.execute(insert(backup_codes), [{"user_id": user_id, "hash": each} for each in hashes])


async def use_backup_code(connection: AsyncConnection, user_id: UUID, code_hash: bytes) -> bool:
    """Use a backup code up; False when there is none with this hash, or it was used."""
    result = await connection.execute(
        update(backup_codes)
        .where(
            backup_codes.c.user_id == user_id,
            backup_codes.c.hash == code_hash,
            backup_codes.c.used_at.is_(None),
        )
        .values(used_at=func.now())
    )
    return result.rowcount == 1


async def count_backup_codes(connection: AsyncConnection, user_id: UUID) -> int:
    """How many backup codes of a person were not used."""
    statement = select(func.count()).where(
        backup_codes.c.user_id == user_id, backup_codes.c.used_at.is_(None)
    )
    count: int = (await connection.execute(statement)).scalar_one()
    return count
