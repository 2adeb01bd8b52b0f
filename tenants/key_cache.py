"""The key ring's memory: admissions and refusals by full hash, bounded, dropped by organisation."""

from uuid import UUID

from core.clock import Clock
from tenants.principal import Principal
from tenants.resolve import Admission, Refusal

REFUSAL_TTL_S = 60.0


class KeyCache:
    """Two bounded maps from the 32-byte hash of a key. When one is full its oldest entry goes."""

    def __init__(self, clock: Clock, admitted_size: int, refused_size: int) -> None:
        self._clock = clock
        self._admitted_size = admitted_size
        self._refused_size = refused_size
        self._admitted: dict[bytes, Admission] = {}
        self._by_tenant: dict[UUID, set[bytes]] = {}
        self._refused: dict[bytes, tuple[float, Refusal]] = {}
        self.generation = 0
        """Goes up whenever something is dropped: what was read before may be stale."""

    def __len__(self) -> int:
        """Entries of both maps together."""
        return len(self._admitted) + len(self._refused)

    def admitted(self, digest: bytes) -> Principal | None:
        """The principal of a cached, good key; an expired one turns into a refusal."""
        entry = self._admitted.get(digest)
        if entry is None:
            return None
        principal = entry.at(self._clock.now())
        if principal is None:
            self.put(digest, Refusal("expired", entry.principal.key_id))
        return principal

    def refused(self, digest: bytes) -> Refusal | None:
        """Why this key was refused within the last minute."""
        entry = self._refused.get(digest)
        if entry is None:
            return None
        until, refusal = entry
        if until <= self._clock.monotonic():
            del self._refused[digest]
            return None
        return refusal

    def put(self, digest: bytes, verdict: Admission | Refusal) -> None:
        """Remember a verdict, in place of any earlier one."""
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

    def forget_tenants(self, tenant_ids: set[UUID]) -> None:
        """Drop every admission of these organisations, and all refusals: any may have become good."""
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
