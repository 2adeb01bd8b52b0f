"""Which of the hosts that providers have, or will have, contracts cover: pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from workers.acting.contracts import Contracts, HostContract, RunningHost, assign
from workers.providers.intents import Intent
from workers.providers.interface import HostGroup


class Covered(msgspec.Struct, frozen=True):
    """The covered ones of some hosts."""

    hosts: Mapping[str, HostContract] = {}
    """Their contracts, by name."""
    groups: Mapping[HostGroup, int] = {}
    """How many of a group, those that have no name yet included; the others have none."""
    next: HostContract | None = None
    """The contract that would cover one more of the group that was asked about."""


def covered_hosts(
    contracts: Contracts,
    wanted: Iterable[Intent],
    unnamed: Mapping[HostGroup, int],
    now: datetime,
    more: HostGroup | None = None,
) -> Covered:
    """Assign `wanted` hosts of providers, those of each group that are desired beside them, and one `more`.

    `contracts` has the hosts that nobody wanted of a provider.
    """
    if not contracts.running:
        return Covered()
    hosts = {host.name: host for host in contracts.hosts}
    groups = {one.name: one.group for one in wanted}
    hosts |= {one.name: RunningHost(one.name, one.kind, one.region, one.requested_at) for one in wanted}
    for number, group in enumerate(Counter(unnamed).elements()):
        name = f"/{number}"  # no host is called so
        groups[name] = group
        hosts[name] = RunningHost(name, group.kind, group.region, now)
    if more is not None:
        hosts["/next"] = RunningHost("/next", more.kind, more.region, now + timedelta(seconds=1))
    assigned = assign(contracts.running, hosts.values())
    return Covered(
        assigned, Counter(groups[name] for name in assigned if name in groups), assigned.get("/next")
    )
