"""Whether a host has the memory that its engines keep KV caches in.

vLLM's own offloading takes all of it when the engine starts, as a file in /dev/shm that the engine's processes share.
An LMCache server takes as much by itself. Both keep it while the engine sleeps.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from core.errors import InvalidRequest
from workers.plan import ReplicaPlan

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where vLLM makes the file; nothing is written here


def tiers_gb(replicas: Sequence[ReplicaPlan]) -> float:
    """Memory for the KV caches of a host's replicas, in GB."""
    return sum((each.profile.tier_gb for each in replicas), 0.0)


def check_tiers(replicas: Sequence[ReplicaPlan], memory_gb: float, shared_gb: float) -> None:
    """Raise InvalidRequest where KV caches do not fit into a host's memory or its /dev/shm."""
    tiered = [each for each in replicas if each.profile.kv_offload is not None]
    native = [
        each for each in tiered if each.profile.kv_offload and each.profile.kv_offload.backend == "native"
    ]
    for some, room_gb, where in ((tiered, memory_gb, "memory"), (native, shared_gb, str(SHARED_MEMORY))):
        if (needs := tiers_gb(some)) > room_gb:
            names = ", ".join(dict.fromkeys(f"{each.model.name}:{each.profile.name}" for each in some))
            enlarge = f"enlarge {SHARED_MEMORY} (mount -o remount,size=...), or " if some is native else ""
            raise InvalidRequest(
                f"the KV caches in host memory of {len(some)} engines ({names}) need {needs:.0f} GB, and this host has "
                f"{room_gb:.0f} GB of {where}; {enlarge}choose a profile without kv_offload",
                param="profile",
            )


def shared_memory_gb() -> float:
    """Size of /dev/shm in GB; 0 where there is none."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0.0
    return found.f_blocks * found.f_frsize / 1e9
