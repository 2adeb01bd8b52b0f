"""Contracts for hosts, and which hosts they cover: pure.

A contract is a number of hosts of a kind, in one region or in any, for a term, at a price per host and hour that is
paid whether they run or not. It names no host: the hosts that run are assigned to the contracts that run, the oldest
host first, those of its region before those of any (docs/adr/0072).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from workers.wire import SIMULATED_HOST


class HostContract(msgspec.Struct, frozen=True):
    """Hosts that are paid for from `starts_at` until `ends_at`, whole UTC hours."""

    contract_id: UUID
    kind: str
    region: str
    """In lower case; empty = any."""
    count: int
    starts_at: datetime
    ends_at: datetime | None
    """None = until a person ends it."""
    usd_pico_per_hour: int
    """Of one host."""
    source: str
    """Where it stands, such as the number of the contract."""

    def runs(self, now: datetime) -> bool:
        """Whether `now` is within its term."""
        return self.starts_at <= now and (self.ends_at is None or now < self.ends_at)

    @property
    def words(self) -> str:
        """It in words, such as `contract 0199c0de-… until 2027-01-01 00:00 UTC`."""
        until = (
            "without an end"
            if self.ends_at is None
            else f"until {self.ends_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        )
        return f"contract {self.contract_id} {until}"


class RunningHost(msgspec.Struct, frozen=True):
    """A host that a contract may cover: it runs, or it is wanted and being created."""

    name: str
    kind: str
    region: str
    since: datetime
    """When it was asked for, or first seen."""


class Contracts(msgspec.Struct, frozen=True):
    """The contracts that run, and the hosts that they may cover."""

    running: tuple[HostContract, ...] = ()
    hosts: tuple[RunningHost, ...] = ()

    @property
    def assigned(self) -> dict[str, HostContract]:
        """The covered hosts by name, each with its contract."""
        return assign(self.running, self.hosts)

    @property
    def free(self) -> Counter[tuple[str, str]]:
        """Hosts that contracts cover beside those that there are, by kind and region (empty = any)."""
        free = Counter({(one.kind, one.region): 0 for one in self.running})
        for contract in self.running:
            free[contract.kind, contract.region] += contract.count
        free.subtract((one.kind, one.region) for one in self.assigned.values())
        return +free


def assign(contracts: Sequence[HostContract], hosts: Iterable[RunningHost]) -> dict[str, HostContract]:
    """The hosts that contracts cover: the oldest first, each by a contract of its region where one has room.

    As a host is covered before all younger ones, it stays so while it runs and enough contracts do.
    """
    in_turn = sorted(contracts, key=lambda one: (not one.region, one.starts_at, one.contract_id))
    room = {one.contract_id: one.count for one in in_turn}
    found: dict[str, HostContract] = {}
    if not in_turn:
        return found
    for host in sorted(hosts, key=lambda one: (one.since, one.name)):
        for contract in in_turn:
            near = contract.region in ("", host.region.lower())
            if near and contract.kind == host.kind and room[contract.contract_id]:
                room[contract.contract_id] -= 1
                found[host.name] = contract
                break
    return found


def covering(assigned: Mapping[str, HostContract], host_id: str) -> HostContract | None:
    """The contract that covers a host, by the id in its heartbeats; None = none does."""
    return assigned.get(host_id) or assigned.get(host_id.removeprefix(SIMULATED_HOST))
