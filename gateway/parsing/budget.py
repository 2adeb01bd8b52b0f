"""The memory of large bodies, shared by all keys of a process.

A body above INLINE_BYTES takes a reservation before it is read further and keeps it until it is parsed; a large list of
tokens takes one until its client has it. What exceeds a share is refused at once, so that many large bodies of one key
or tenant leave room for those of others.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from core.errors import Refused, Unavailable
from gateway.limits import MAX_BODY_BYTES
from tenants.principal import Principal

INLINE_BYTES = 256 * 1024
"""Bytes of the longest body that is parsed in the event loop, and of a body that needs no reservation.

The most expensive bodies take 6.5 us per KiB (nested arrays in an ignored field, one core of a 2.5 GHz server), so that
this size takes at most 1.7 ms; text takes 0.5 us per KiB.
"""
MAX_BYTES = 64 * MAX_BODY_BYTES
"""Bytes of all large bodies at a time, where no setting says otherwise."""
TENANT_SHARE = 4
"""A tenant's large bodies take at most this share of all: a quarter."""
KEY_SHARE = 8
"""A key's large bodies take at most this share of all: an eighth."""


class BodyBudget:
    """Reservations of large bodies that arrive or are parsed. One per process."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """`max_bytes`: of all large bodies at a time. A single body of any size is always accepted."""
        self.total = 0
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max(max_bytes // TENANT_SHARE, MAX_BODY_BYTES)
        self._max_key_bytes = max(max_bytes // KEY_SHARE, MAX_BODY_BYTES)
        self._owners: Counter[UUID] = Counter()

    @contextmanager
    def reserve(self, principal: Principal, size: int) -> Iterator[None]:
        """Reserve `size` bytes for as long as the context lasts.

        Raises Refused (429) when the key or its tenant has used its share, and Unavailable when all is used.
        """
        key, tenant = principal.key_id, principal.tenant_id
        if (
            self._owners[key] + size > self._max_key_bytes
            or self._owners[tenant] + size > self._max_tenant_bytes
        ):
            raise Refused(
                "Too many large bodies of this key or organisation are on their way; send fewer at a time.",
                status=429,
                code="too_many_large_bodies",
                retry_after_s=1.0,
            )
        if self.total + size > self._max_bytes:
            raise Unavailable(
                "Too many large bodies are on their way; try again in a second.",
                code="too_many_large_bodies",
                retry_after_s=1.0,
            )
        self._add(key, tenant, size)
        try:
            yield
        finally:
            self._add(key, tenant, -size)

    def _add(self, key: UUID, tenant: UUID, size: int) -> None:
        self.total += size
        for owner in (key, tenant):
            self._owners[owner] += size
            if not self._owners[owner]:
                del self._owners[owner]
