"""Keys that were made before keys had a tag (tenants/key_format.py). A process keeps a part of the hash of each.

They go on working. A made-up key without a tag is refused without a look-up, because it is none of them.
"""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from tenants import key_store


class UntaggedKeys:
    """The known keys without a tag, by the first 8 bytes of their stored hash: about 70 bytes of memory each."""

    def __init__(self) -> None:
        self._parts: set[int] | None = None
        """None until they have been read."""

    async def load(self, connection: AsyncConnection) -> None:
        """Read all of them."""
        self._parts = {_part(key_hash) for key_hash in await key_store.untagged_hashes(connection)}

    async def add(self, connection: AsyncConnection, key_ids: Collection[UUID]) -> None:
        """Add those among `key_ids`: a process of an earlier version may still make such keys during an upgrade."""
        if self._parts is not None:
            self._parts.update(map(_part, await key_store.untagged_hashes(connection, key_ids)))

    def may_contain(self, key_hash: bytes) -> bool:
        """False when no key without a tag has this hash."""
        return self._parts is None or _part(key_hash) in self._parts


def _part(key_hash: bytes) -> int:
    return int.from_bytes(key_hash[:8], "big")
