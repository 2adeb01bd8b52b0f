"""Which requests of a model use the new version of its engines while that is a canary. Pure."""

import hashlib
from dataclasses import dataclass

CANARY, STABLE = "canary", "stable"
"""The two tracks of requests and of replicas."""


@dataclass(frozen=True, slots=True)
class Canary:
    """The share of a model's organisations, or of its requests, for the replicas of one version."""

    version: str
    percent: int
    """Of all organisations, chosen by a hash, so that each stays on its track; or of all requests."""
    tenants: frozenset[str]
    """Organisations that use it in any case."""
    by_request: bool
    """Whether the share is of requests instead. Those of an organisation then use both versions."""
    salt: str
    """Of the hash: the rollout's id, so that it is not always the same organisations that come first."""
    agents: frozenset[str] | None = None
    """Those of the hosts of a new image, whose replicas have it; None = the version of each replica says that."""

    def track_of(self, tenant_id: str, request_id: str) -> str:
        """The track of an organisation's request."""
        if tenant_id in self.tenants:
            return CANARY
        unit = request_id if self.by_request else tenant_id
        digest = hashlib.blake2b(f"{self.salt}/{unit}".encode(), digest_size=8).digest()
        return CANARY if int.from_bytes(digest, "big") % 10_000 < self.percent * 100 else STABLE

    def track_of_replica(self, version: str, agent_id: str) -> str:
        """The track of a replica of a version, on the host of an agent."""
        new = version == self.version if self.agents is None else agent_id in self.agents
        return CANARY if new else STABLE
