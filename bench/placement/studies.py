"""What `make bench-placement` plays: a representative part of the workloads, pools, loads and policies.

All of them would take hours on two cores. Each workload was taken because it stresses something else, before any was
played with these policies; tuned and held-out ones are kept apart.
"""

from dataclasses import dataclass

from sim.pool.pool import unvalidated
from sim.pool.registry import GROUPS
from workers.catalog import load_catalog

DENSE, EXPERTS = "llama-3.3-70b", "deepseek-v3.2"
_UNVALIDATED = unvalidated((DENSE, EXPERTS), load_catalog())


@dataclass(frozen=True, slots=True)
class Study:
    """One workload on one pool."""

    workload: str
    model: str
    hosts: int
    replicas: int
    """Replicas that the hosts hold by the model's default profile."""
    group: str
    """Policies, by the name of their group."""
    held_out: bool = False
    """Whether our scheduler was never tuned on the workload."""
    points: tuple[tuple[str, float], ...] = (("zero", 1.0), ("zero", 1.2), ("equal", 1.2))
    """Ways of shedding and loads."""

    @property
    def name(self) -> str:
        """Name of the study: unique, and a file name."""
        return f"{self.group}-{self.workload}-{self.model}-{self.replicas}"

    @property
    def title(self) -> str:
        """The study as tables show it; figures that no sweep validates are marked."""
        mark = " (unvalidated)" if self.model in _UNVALIDATED else ""
        return f"{self.workload}, {self.replicas}x {self.model}{mark}"

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the policies."""
        return GROUPS[self.group]


ABLATED = (("zero", 1.0), ("equal", 1.2))
STUDIES = (
    Study("mooncake-conversation", DENSE, 2, 8, "present"),
    Study("mooncake-synthetic", DENSE, 2, 8, "ablation", points=ABLATED),
    Study("azure-code", DENSE, 2, 8, "present", held_out=True),
    Study("mixed", DENSE, 2, 8, "ablation", points=ABLATED),
    Study("agent-chains", EXPERTS, 8, 8, "present"),
    Study("azure-code", DENSE, 4, 16, "present", held_out=True),
    Study("mooncake-conversation", DENSE, 2, 8, "factorial", points=(("zero", 1.0), ("zero", 1.2))),
    Study("mixed", DENSE, 2, 8, "present"),
    Study("azure-code", EXPERTS, 16, 16, "present", held_out=True),
    Study("diurnal", DENSE, 4, 16, "present", held_out=True),
    Study("greedy-tenant", DENSE, 2, 8, "ablation", points=ABLATED),
    Study("mooncake-conversation", DENSE, 2, 8, "older", points=(("zero", 1.0),)),
)
"""In the order in which they are played; what has been played is published after each."""
