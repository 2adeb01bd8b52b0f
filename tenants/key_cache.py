"""Bounded cache of admitted and refused keys, by full hash; invalidated by organisation."""

from datetime import datetime
from uuid import UUID

from core.clock import Clock
from tenants.principal import Principal
from tenants.resolve import Admission, Refusal

REFUSAL_TTL_S = 60.0
"""Life of a cached refusal."""


class KeyCache:
    """Two bounded maps by the 32-byte hash of a key. A full map evicts its oldest entry."""

    def __init__(self, clock: Clock, admitted_size: int, refused_size: int) -> None:
        self._clock = clock
        self._admitted_size = admitted_size
        self._refused_size = refused_size
        self._admitted: dict[bytes, Admission] = {}
        self._by_tenant: dict[UUID, set[bytes]] = {}
        self._refused: dict[bytes, tuple[float, Refusal]] = {}
        self.generation = 0
        """Incremented by every invalidation: a key that was read before it may be stale."""

    def __len__(self) -> int:
        """Entries of both maps together."""
        return len(self._admitted) + len(self._refused)

    def admitted(self, digest: bytes, now: datetime) -> Principal | None:
        """The principal of a cached key that is valid at `now`, else None; a key that has expired becomes a refusal."""
        entry = self._admitted.get(digest)
        if entry is None:
            return None
        principal = entry.at(now)
        if principal is None:
            self.put(digest, Refusal("expired", entry.principal.key_id))
        return principal

    def refused(self, digest: bytes) -> Refusal | None:
        """The refusal of this key within the last REFUSAL_TTL_S; None without one."""
        entry = self._refused.get(digest)
        if entry is None:
            return None
        until, refusal = entry
        if until <= self._clock.monotonic():
            del self._refused[digest]
            return None
        return refusal

    def put(self, digest: bytes, verdict: Admission | Refusal) -> None:
        """Cache a verdict in place of any earlier one."""
        self._drop(digest)
        self._refused.pop(digest, None)
        if isinstance(verdict, Refusal):
            if len(self._refused) >= self._refused_size:
                del self._refused[next(iter(self._refused))]
            self._refused[digest] = (self._clock.monotonic() + REFUSAL_TTL_S, verdict)
            return
        if len(self._admitted) >= self._admitted_size:
            self._drop(next(iter(self._admitted)))
        self._admitted[digest] = verdict
        self._by_tenant.setdefault(verdict.principal.tenant_id, set()).add(digest)

    def invalidate_tenants(self, tenant_ids: set[UUID]) -> None:
        """Drop all admissions of these organisations, and all refusals, since any of them may now be valid."""
        self.generation += 1
        self._refused.clear()
        for tenant_id in tenant_ids:
            for digest in list(self._by_tenant.get(tenant_id, ())):
                self._drop(digest)

    def clear(self) -> None:
        """Drop everything."""
        self.generation += 1
        self._admitted.clear()
        self._by_tenant.clear()
        self._refused.clear()

    def _drop(self, digest: bytes) -> None:
        entry = self._admitted.pop(digest, None)
        if entry is None:
            return
        siblings = self._by_tenant[entry.principal.tenant_id]
        siblings.discard(digest)
        if not siblings:
            del self._by_tenant[entry.principal.tenant_id]
