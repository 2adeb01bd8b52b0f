"""The replicas of a host that use the same GPUs: one at a time, and no more weights at rest than memory holds."""

import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Protocol

from core.errors import Conflict
from workers.catalog import Catalog, LadderFigures
from workers.kv_tiers import tiers_gb
from workers.plan import ReplicaPlan
from workers.replica_states import ASLEEP, Phase
from workers.wire import ReplicaState

STARTS = ("wake", "resume", "restart")
"""Commands after which a replica may use its GPUs."""
_SERVES = (ReplicaState.READY, ReplicaState.LOADING, ReplicaState.DRAINING)


class OnGpus(Protocol):
    """A replica as the others on its GPUs see it."""

    plan: ReplicaPlan
    state: ReplicaState

    @property
    def phase(self) -> Phase:
        """What it does now."""

    @property
    def on_gpus(self) -> bool:
        """Whether it uses its GPUs, or is about to."""

    @property
    def rests_at(self) -> int:
        """The level at which it sleeps, is going to or wakes from, and so holds memory; 0 = none."""


class SharedGpus:
    """Who uses the GPUs of a host, and the memory that sleeping replicas hold."""

    def __init__(
        self, replicas: Callable[[], Sequence[OnGpus]], memory_gb: float, ladder: LadderFigures | None
    ) -> None:
        """`memory_gb` is that of the host; without it there is no bound."""
        self._replicas, self._ladder = replicas, ladder
        self._memory_gb = memory_gb

    @property
    def memory_gb(self) -> float:
        """Memory of the host in GB for the weights of sleeping replicas: what their KV caches leave; 0 = not known."""
        left = self._memory_gb - tiers_gb([each.plan for each in self._replicas()])
        return max(1.0, left) if self._memory_gb else 0.0

    def taken(self, own: OnGpus) -> str:
        """Why a replica may not start: what uses its GPUs; empty = it may."""
        for other in self._others(own):
            if other.on_gpus:
                gpus = ", ".join(sorted(set(own.plan.gpu_ids) & set(other.plan.gpu_ids)))
                return f"{other.plan.replica_id} uses its GPUs {gpus}; put that to sleep or stop it first"
        return ""

    def check(self, own: OnGpus, action: str, level: int) -> None:
        """Raise Conflict for a command that would put two engines on a GPU, or more to sleep than memory holds."""
        deepens = action == "sleep" and level == 2 and own.phase is Phase.ASLEEP_1  # by way of the GPUs
        if (action in STARTS or deepens) and (why := self.taken(own)):
            raise Conflict(why)
        if action == "sleep" and own.phase not in ASLEEP:
            self._check_memory(own, level)

    def share(self, own: OnGpus) -> Fraction:
        """A replica's part of the host now: that of its GPUs while it uses them, or of what nothing else uses."""
        others = self._others(own)
        if own.state in _SERVES or not others:
            return own.plan.share
        if any(other.state in _SERVES for other in others):
            return Fraction(0)
        return own.plan.share / (1 + len(others))

    def _others(self, own: OnGpus) -> list[OnGpus]:
        gpus = set(own.plan.gpu_ids)
        return [each for each in self._replicas() if each is not own and gpus & set(each.plan.gpu_ids)]

    def _check_memory(self, own: OnGpus, level: int) -> None:
        needs = self._held_gb(own.plan, level)
        others = (each for each in self._replicas() if each is not own and each.rests_at)
        held = sum(self._held_gb(each.plan, each.rests_at) for each in others)
        room = self.memory_gb
        if room and held + needs > room:
            raise Conflict(
                f"{own.plan.replica_id} would hold {needs:.0f} GB of memory at sleep level {level}, and sleeping "
                f"replicas hold {held:.0f} GB of the {room:.0f} GB that the host has for them; "
                f"{'put it to sleep at level 2, or stop it' if level == 1 else 'stop it'}"
            )

    def _held_gb(self, plan: ReplicaPlan, level: int) -> float:
        if self._ladder is None:
            return 0.0
        if level == 2:
            return self._ladder.sleep_2_host_gb.value
        return self._ladder.sleep_1_host_share.value * (plan.profile.weights_gb or plan.model.weights_gb)


def machine_memory_gb() -> float:
    """Memory of this machine in GB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def host_memory_gb(catalog: Catalog, kind: str, *, simulated: bool) -> float:
    """Memory of this machine, or of the kind of host that a simulated one stands for, in GB; 0 = not known."""
    if not simulated:
        return machine_memory_gb()
    known = catalog.hosts.get(kind)
    return known.ram_gb.value if known is not None and known.ram_gb is not None else 0.0
