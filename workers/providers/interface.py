"""What a provider of hosts is: it lists, creates and destroys hosts, and says when those that are gone ended.

A provider neither decides nor retries. `decide.py` decides, `reconciler.py` acts; both know only what is here.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol

import msgspec

HostStatus = Literal["starting", "running", "stopped"]
"""`stopped` hosts cost as much as running ones."""


MAX_GROUP = 200
"""Characters of the models of a group."""


class HostGroup(msgspec.Struct, frozen=True):
    """Hosts that are alike: of one kind in one region, for one model."""

    provider: str
    region: str
    kind: str
    """The provider's name for the size of machine, which is the catalog's kind of host."""
    model: str = ""
    """The model that they are wanted for, or the models that share them, as in the agent's setting `model`; empty =
    whatever comes."""


def models_of(group: str) -> tuple[str, ...]:
    """The names of the models of a group of hosts, of which there are several where hosts are shared."""
    return tuple(filter(None, (part.partition("[")[0].strip() for part in group.split(","))))


class ImageRollout(msgspec.Struct, frozen=True):
    """A rollout of an image for a group's hosts, as far as the passes carry it out (docs/rollouts.md)."""

    image: str
    most: int
    """Hosts that may be made from it now; 0 = those that were are replaced."""
    surge: bool
    """Whether a new host comes before the one that it replaces is given up."""
    gives_room: bool
    """Whether an old host may leave first where there is no room for one more."""


class DesiredHosts(msgspec.Struct, frozen=True):
    """How many hosts of a group there should be, and who says so."""

    group: HostGroup
    count: int
    owner: Literal["plan", "person"] = "person"
    """The autoscaler's plan leaves a person's groups alone."""
    expires_at: datetime | None = None
    """When a person's group becomes the plan's; None = never."""
    image: str = ""
    """From which its hosts are made; those made from another are replaced. Empty = the provider's settings say, and
    none is replaced."""
    image_at: datetime | None = None
    """When that was set."""
    surge: bool = True
    """Whether a host of the image comes before one of another is given up."""
    rollout: ImageRollout | None = None
    """The rollout of another image that is under way; it decides in place of `image` then."""

    def is_persons(self, now: datetime) -> bool:
        """Whether a person decides on the group."""
        return self.owner == "person" and (self.expires_at is None or self.expires_at > now)


class ObservedHost(msgspec.Struct, frozen=True):
    """A host as its provider shows it."""

    provider_id: str
    name: str
    kind: str
    region: str
    status: HostStatus
    created_at: datetime
    """From when it is charged, by the provider's clock."""
    usd_pico_per_hour: int
    tagged: bool = True
    """Whether it carries the fleet's tag. One that does not is ours only if an intent has its name."""
    image: str = ""
    """From which it was made, as the provider names it; empty = it does not say."""


class EngineStart(msgspec.Struct, frozen=True):
    """What a host runs of its model."""

    profile: str = ""
    """Empty = the first that fits."""
    replicas: int = 0
    """0 = as many as its GPUs hold, of a kind that the catalog does not have."""


class HostRequest(msgspec.Struct, frozen=True):
    """A host to create. Its name is unique to the intent and is also its tag."""

    name: str
    region: str
    kind: str
    model: str = ""
    """The model that it is wanted for; empty = whatever comes."""
    start: EngineStart = EngineStart()
    join_token: str = ""
    """With which its agent joins; empty = it is given none."""
    image: str = ""
    """From which it is made; empty = the provider's settings say."""


class Outcome(StrEnum):
    """How a call ended."""

    OK = "ok"
    REFUSED = "refused"
    """Nothing was done, and the same call would be refused again for now."""
    ABSENT = "absent"
    """The host is not known, which right after its creation does not mean that it does not exist."""
    BUSY = "busy"
    """The host is being changed; the same call later succeeds."""
    THROTTLED = "throttled"
    """Nothing was done; no call before `not_before`."""
    UNKNOWN = "unknown"
    """Whether anything was done is not known."""


class CallResult(msgspec.Struct, frozen=True):
    """The result of one call."""

    call: str
    """create | destroy | list | endings | account | prices, or replace: of a host that failed, which calls nothing"""
    outcome: Outcome
    status: int = 0
    """HTTP status; 0 = no answer, or no HTTP."""
    detail: str = ""
    """What the provider said, for people. It holds no credentials."""
    host: ObservedHost | None = None
    """The host that a successful create began."""
    not_before: datetime | None = None
    """The provider wants no further call before this instant."""


class Listing(msgspec.Struct, frozen=True):
    """The hosts of the fleet that the provider shows."""

    hosts: tuple[ObservedHost, ...]
    calls: tuple[CallResult, ...]
    complete: bool
    """Whether all pages were read: only then does an absence mean anything."""


class Account(msgspec.Struct, frozen=True):
    """Whose hosts a provider's calls are about."""

    account_id: str
    """As the provider names it; empty = it could not be read."""
    call: CallResult


class Prices(msgspec.Struct, frozen=True):
    """What new hosts cost."""

    usd_pico_per_hour: Mapping[str, int]
    """By kind; kinds that the provider does not list are absent."""
    calls: tuple[CallResult, ...]
    complete: bool
    """Whether all pages were read."""

    @property
    def refused(self) -> bool:
        """Whether the provider does not show them, so that the next pass will not see them either."""
        return any(call.outcome is Outcome.REFUSED for call in self.calls)


class Endings(msgspec.Struct, frozen=True):
    """When hosts that are gone ended, by the provider's records."""

    ended: Mapping[str, datetime]
    """By provider_id; hosts without a record are absent."""
    calls: tuple[CallResult, ...]
    complete: bool
    """Whether all records after the instant were read."""

    @property
    def refused(self) -> bool:
        """Whether the provider does not show them, so that the next pass will not see them either."""
        return any(call.outcome is Outcome.REFUSED for call in self.calls)


class HostProvider(Protocol):
    """A provider. Its calls return a result for whatever happened and raise nothing that the network causes."""

    name: str

    async def account(self) -> Account:
        """Whose hosts these are."""

    async def prices(self, kinds: Collection[str]) -> Prices:
        """What new hosts of these kinds cost."""

    async def list_hosts(self, kinds: Collection[str]) -> Listing:
        """All hosts of the fleet, whose kinds these are."""

    async def create(self, request: HostRequest) -> CallResult:
        """Ask for a host, once."""

    async def destroy(self, provider_id: str) -> CallResult:
        """Destroy a host, once."""

    async def endings(self, since: datetime) -> Endings:
        """Records of the hosts that ended after `since`."""

    async def close(self) -> None:
        """Close connections."""
