"""The autoscaler's plan for hosts as the scheduler stores it, acts with their reasons, and the switch."""

from enum import StrEnum
from typing import Literal

import msgspec

ActResult = Literal["done", "failed", "refused", "dry-run"]


class Mode(StrEnum):
    """Whether a plan is acted on."""

    OFF = "off"
    DRY_RUN = "dry-run"
    """What would be done is written down."""
    ON = "on"


def mode_of(platform: Mode, model: Mode | None, *, has_limits: bool) -> Mode:
    """What holds for a model: the weaker of the platform's switch and its own.

    A model that no admin has set limits for is only planned for: nothing was decided about it.
    """
    if not has_limits:
        return Mode.OFF
    order = list(Mode)
    return min(platform, model or Mode.ON, key=order.index)


class PlannedModel(msgspec.Struct, frozen=True):
    """A model's replicas in the plan."""

    model: str
    awake: int
    """Replicas that serve."""


class PlannedCreation(msgspec.Struct, frozen=True):
    """Hosts to create beside those that the plan knew of."""

    kind: str
    model: str
    count: int
    reason: str
    regions: tuple[str, ...] = ()
    """In one of these regions, in lower case; empty = wherever the kind may be created."""
    shares: str = ""
    """The models that share them, `model` among them; empty = it alone."""

    @property
    def hosts_for(self) -> str:
        """The model of their group."""
        return self.shares or self.model

    def allows(self, region: str) -> bool:
        """Whether the hosts may be in `region`."""
        return not self.regions or region.lower() in self.regions


class PlannedRemoval(msgspec.Struct, frozen=True):
    """A host to destroy."""

    host: str
    """Its name, which is its intent's."""
    reason: str
    drained: bool
    """Whether no engine runs on it any more. Only then may it be destroyed."""


class StoredPlan(msgspec.Struct, frozen=True):
    """What the plan says about hosts."""

    models: tuple[PlannedModel, ...] = ()
    create: tuple[PlannedCreation, ...] = ()
    """Those that may be anywhere."""
    destroy: tuple[PlannedRemoval, ...] = ()
    known: tuple[str, ...] = ()
    """Names of the hosts that the plan counted, in creation or present. Others were created after it was made."""
    emptied: tuple[str, ...] = ()
    """Names of the hosts that are not wanted any more and on which no engine runs."""
    left: dict[str, str] = {}
    """The hosts of replicas that served and were stopped for a notice, by replica: the next scheduler starts them again
    when the notice is cancelled."""
    create_there: tuple[PlannedCreation, ...] = ()
    """Creations for some regions. They are apart because `jobs` of a release that does not know regions would create
    them anywhere, and again with each plan."""

    create_shared: tuple[PlannedCreation, ...] = ()
    """Creations of shared hosts. They are apart because `jobs` of a release that does not know them would create hosts
    of one model."""

    @property
    def creations(self) -> tuple[PlannedCreation, ...]:
        """All hosts to create."""
        return (*self.create, *self.create_there, *self.create_shared)


class PoolAct(msgspec.Struct, frozen=True):
    """An act for the timeline."""

    model: str
    target: str
    """A host, a replica, or a group of hosts as PROVIDER/REGION/KIND."""
    act: str
    reason: str
    mode: Mode
    result: ActResult
    detail: str = ""
    """Why it failed or was refused."""
