"""The authority that signs schedulers' certificates: one for all schedulers, in PostgreSQL, made by the first."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from core.errors import Unavailable
from core.private_tls import Issued, fingerprint, new_authority, read_authority
from core.settings import Settings
from scheduler.tables import scheduler_authority


async def obtain(database: Database, password: bytes, now: datetime) -> Issued:
    """The authority, which is made if there is none; its key is encrypted with `password`."""
    async with database.system() as connection:
        found = await _read(connection)
        if found is None:
            made = new_authority(password, now)
            row = insert(scheduler_authority).values(certificate=made.certificate, encrypted_key=made.key)
            await connection.execute(row.on_conflict_do_nothing())
            found = await _read(connection)  # another may have been first
    if found is None:
        raise RuntimeError("an authority was stored and is not there")
    return found


async def certificate(database: Database) -> bytes | None:
    """The authority's certificate in PEM; None = no scheduler has made one, because none speaks TLS."""
    async with database.read() as connection:
        found = await _read(connection)
    return None if found is None else found.certificate


async def known_fingerprint(database: Database, settings: Settings) -> str:
    """By what hosts that join know the schedulers; empty where none speaks TLS yet."""
    if settings.scheduler_ca.name:
        return fingerprint(read_authority(settings.scheduler_ca))
    found = await certificate(database)
    return "" if found is None else fingerprint(found)


async def trusted(database: Database, settings: Settings) -> bytes:
    """The authority that a client with a database trusts. Raises Unavailable when there is none yet."""
    if settings.scheduler_ca.name:
        return read_authority(settings.scheduler_ca)
    found = await certificate(database)
    if found is None:
        raise Unavailable(
            "no scheduler has made an authority for TLS yet; start one that binds an address beyond loopback, or set "
            "PENSTOCK_SCHEDULER_CA"
        )
    return found


async def _read(connection: AsyncConnection) -> Issued | None:
    table = scheduler_authority.c
    row = (await connection.execute(select(table.certificate, table.encrypted_key))).one_or_none()
    return None if row is None else Issued(bytes(row.certificate), bytes(row.encrypted_key))
