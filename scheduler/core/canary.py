"""Which requests of a model use the new version of its engines while that is a canary. Pure."""

import hashlib
from dataclasses import dataclass

CANARY, STABLE = "canary", "stable"
"""The two tracks of requests and of replicas."""


@dataclass(frozen=True, slots=True)
class Canary:
    """The share of a model's organisations whose requests use replicas of one version."""

    version: str
    percent: int
    """Of all organisations, chosen by a hash, so that each stays on its track."""
    tenants: frozenset[str]
    """Organisations that use it in any case."""
    salt: str
    """Of the hash: the rollout's id, so that it is not always the same organisations that come first."""

    def track_of(self, tenant_id: str) -> str:
        """The track of an organisation's requests."""
        if tenant_id in self.tenants:
            return CANARY
        digest = hashlib.blake2b(f"{self.salt}/{tenant_id}".encode(), digest_size=8).digest()
        return CANARY if int.from_bytes(digest, "big") % 10_000 < self.percent * 100 else STABLE

    def track_of_version(self, version: str) -> str:
        """The track of a replica."""
        return CANARY if version == self.version else STABLE
