"""Settings of a key for its clients: the status of answers that money refuses, and the origins of browsers (CORS).

A browser asks before a request whether a page of some origin may send it, and shows no key then. So the answer names
every origin that any key allows, which each API process keeps in memory; the request itself is checked by its key.
"""

import re
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import InvalidRequest
from tenants.scoping import platform_wide
from tenants.tables import api_keys

QUOTA_STATUSES = (402, 429)
MAX_ORIGINS = 20
"""Origins of a key."""
_ORIGIN = re.compile(r"https?://[a-z0-9.-]{1,253}(:[0-9]{1,5})?|https?://\[[0-9a-f:]{2,39}\](:[0-9]{1,5})?")


def clean_origins(values: list[str] | None) -> list[str] | None:
    """Sorted, distinct origins as browsers send them, such as https://app.example.com; None for none.

    Raises InvalidRequest. `*` is refused: whoever has the key could use it from any page.
    """
    for value in values or ():
        if _ORIGIN.fullmatch(value) is None:
            raise InvalidRequest(
                f"{value[:80]!r} is no origin such as https://app.example.com: scheme, host in lower case and a port "
                "that is not the default, without a path",
                param="cors_origins",
            )
    if values and len(values) > MAX_ORIGINS:
        raise InvalidRequest(
            f"a key has at most {MAX_ORIGINS} origins, not {len(values)}", param="cors_origins"
        )
    return sorted(set(values)) if values else None


def check_quota_status(value: int) -> int:
    """`value` itself. Raises InvalidRequest unless it is 402 or 429."""
    if value not in QUOTA_STATUSES:
        raise InvalidRequest(f"quota_status must be 402 or 429, not {value}", param="quota_status")
    return value


async def store(
    connection: AsyncConnection,
    tenant_id: UUID,
    key_id: UUID,
    *,
    quota_status: int,
    origins: list[str] | None,
) -> None:
    """Replace both settings of a key of the organisation."""
    await connection.execute(
        update(api_keys)
        .where(api_keys.c.tenant_id == tenant_id, api_keys.c.id == key_id)
        .values(quota_status=quota_status, cors_origins=origins)
    )


@platform_wide("a browser's question about an origin names no organisation")
async def all_origins(connection: AsyncConnection) -> frozenset[str]:
    """Every origin that an active key of any organisation allows."""
    origin = func.unnest(api_keys.c.cors_origins)
    query = (
        select(origin).where(api_keys.c.cors_origins.is_not(None), api_keys.c.status == "active").distinct()
    )
    return frozenset((await connection.execute(query)).scalars())
