"""What an admin allows the autoscaler to do for a model: replicas awake, money per hour, kinds of hosts to create.

The limits and the hosts' prices are read from PostgreSQL in the background, so that no placement waits for it.
"""

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Row, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from core.money import PICO_PER_USD
from core.polled_snapshot import PolledSnapshot
from core.supervise import supervise
from workers.acting.contract_store import read_contracts
from workers.acting.contracts import Contracts
from workers.acting.plan import Mode
from workers.models import RETIRED_NOW
from workers.tables import model_scaling, models

POLL_S = 2.0
"""Seconds between two reads."""
MAX_REPLICAS = 1_024
"""Largest number of replicas of a model; also a constraint of the table `model_scaling`."""
DEFAULT_MAX = 64
"""Most replicas of a model awake, until an admin sets another number."""


class RegionReplicas(msgspec.Struct, frozen=True):
    """How many replicas of a model are awake in a region."""

    region: str
    """In lower case."""
    min_awake: int = 0
    """It comes before the budget."""
    max_awake: int = DEFAULT_MAX


class KindReplicas(msgspec.Struct, frozen=True):
    """How many replicas of a model are awake on hosts of a kind."""

    kind: str
    min_awake: int = 0
    """It comes before the budget."""
    max_awake: int = DEFAULT_MAX


class ScalingLimits(msgspec.Struct, frozen=True):
    """Limits of the autoscaler for one model. Without a row of its own a model has these defaults."""

    min_awake: int = 0
    """Replicas that are always awake; it comes before the budget."""
    max_awake: int = DEFAULT_MAX
    budget_usd_pico_per_hour: int | None = None
    """Most picodollars per hour for the model's hosts that no contract covers; None = no limit."""
    host_kinds: tuple[str, ...] = ()
    """Kinds of hosts that may be created for it, tried in this order."""
    acting: Mode | None = None
    """Whether the plan is acted on for it; None = as the platform's switch says."""
    budget_usd_pico_per_month: int | None = None
    """Most picodollars in a UTC month for the model's hosts that no contract covers; None = no limit."""
    profile: str = ""
    """The profile with which hosts that are created serve it; empty = the first that fits."""
    regions: tuple[RegionReplicas, ...] = ()
    """Limits of single regions, beside those of all."""
    kinds: tuple[KindReplicas, ...] = ()
    """Limits of kinds of hosts, beside those of all."""
    shares: str = ""
    """The models with which it shares hosts that are created, itself among them, as in the agent's setting `model`;
    each of them has the same. Empty = its hosts are its own."""


NO_LIMITS = ScalingLimits()
RETIRED = ScalingLimits(max_awake=0, acting=Mode.OFF)
"""The limits of a retired model that had none: none of its replicas wakes, and those that run go on."""


class ReplicaHold(msgspec.Struct, frozen=True):
    """A person's decision on how many replicas of a model are awake until an instant."""

    model: str
    awake: int
    until: datetime
    reason: str


_HOLDS = text("SELECT model, awake, until, reason FROM replica_holds WHERE until > clock_timestamp()")
_PRICES_NOW = text(
    "SELECT DISTINCT ON (host_kind) host_kind, usd_pico_per_hour FROM host_prices WHERE effective_from <= now() "
    "ORDER BY host_kind, effective_from DESC"
)
_LIST_PRICES = text(
    "SELECT model, input, output FROM price_versions WHERE tier = 'standard' AND tenant_id IS NULL "
    "AND withdrawn_at IS NULL AND effective @> clock_timestamp()"
)


class AnswerPrice(msgspec.Struct, frozen=True):
    """List price of a model's standard tier, in picodollars per token."""

    input: int
    output: int


def limits_problem(limits: ScalingLimits) -> tuple[str, str] | None:
    """The field that is wrong and why; None = nothing."""
    if not 0 <= limits.min_awake <= limits.max_awake:
        return (
            "min_awake",
            f"min_awake is {limits.min_awake}, must be between 0 and max_awake ({limits.max_awake})",
        )
    if limits.max_awake > MAX_REPLICAS:
        return "max_awake", f"max_awake is {limits.max_awake}, must be at most {MAX_REPLICAS}"
    if limits.budget_usd_pico_per_hour is not None and limits.budget_usd_pico_per_hour < 0:
        return "budget_usd_per_hour", "budget_usd_per_hour must not be negative"
    if limits.budget_usd_pico_per_month is not None and limits.budget_usd_pico_per_month < 0:
        return "budget_usd_per_month", "budget_usd_per_month must not be negative"
    if len(set(limits.host_kinds)) < len(limits.host_kinds):
        return "host_kinds", f"host_kinds names a kind twice: {', '.join(limits.host_kinds)}"
    regions = [(each.region, each.min_awake, each.max_awake) for each in limits.regions]
    kinds = [(each.kind, each.min_awake, each.max_awake) for each in limits.kinds]
    for param, rows in (("regions", regions), ("kinds", kinds)):
        if (problem := _places_problem(param, rows, limits.max_awake)) is not None:
            return param, problem
    return None


def _places_problem(param: str, rows: list[tuple[str, int, int]], max_awake: int) -> str | None:
    """What is wrong with (name, least, most) of regions or kinds."""
    names = [name for name, _, _ in rows]
    for name, least, most in rows:
        if names.count(name) > 1:
            return f"{param} names {name} twice"
        if not 0 <= least <= most <= MAX_REPLICAS:
            return (
                f"{param} has {least} to {most} replicas for {name}; the first number must not exceed the second, "
                f"which is at most {MAX_REPLICAS}"
            )
    if (total := sum(least for _, least, _ in rows)) > max_awake:
        return f"{param} wants {total} replicas awake, and max_awake is {max_awake}"
    return None


async def read_limits(connection: AsyncConnection) -> dict[str, ScalingLimits]:
    """The stored limits of every model that has any and is not retired."""
    rows = (await _read(connection)).items()
    return {name: limits for name, (gone, limits) in rows if limits is not None and not gone}


async def _read(connection: AsyncConnection) -> dict[str, tuple[bool, ScalingLimits | None]]:
    """By name: whether it is a retired model or an alias, and its stored limits, if it has any."""
    gone = (RETIRED_NOW | models.c.alias_of.is_not(None)).label("gone")
    rows = await connection.execute(
        select(models.c.name, gone, model_scaling).select_from(models.outerjoin(model_scaling))
    )
    return {row.name: (row.gone, None if row.model is None else _limits(row)) for row in rows}


def _limits(row: Row[Any]) -> ScalingLimits:
    return ScalingLimits(
        row.min_awake,
        row.max_awake,
        None if row.budget_usd_pico_per_hour is None else int(row.budget_usd_pico_per_hour),
        tuple(row.host_kinds),
        None if row.acting is None else Mode(row.acting),
        None if row.budget_usd_pico_per_month is None else int(row.budget_usd_pico_per_month),
        row.profile,
        msgspec.convert(row.regions, tuple[RegionReplicas, ...]),
        msgspec.convert(row.kinds, tuple[KindReplicas, ...]),
        row.shares,
    )


async def read_holds(connection: AsyncConnection) -> dict[str, ReplicaHold]:
    """The holds of replicas that have not expired, by model."""
    rows = await connection.execute(_HOLDS)
    return {row.model: ReplicaHold(row.model, row.awake, row.until, row.reason) for row in rows}


async def read_effective_limits(connection: AsyncConnection) -> dict[str, ScalingLimits]:
    """The limits that hold now: those that are stored, with as many replicas awake as a person holds.

    A retired model, and one whose name has become an alias, is planned for no replica, whoever holds them; whether the
    plan is acted on for it stays as it was, which for a model without limits is not (RETIRED).
    """
    stored = await _read(connection)
    effective = {name: limits for name, (_, limits) in stored.items() if limits is not None}
    for model, hold in (await read_holds(connection)).items():
        limits = effective.get(model, NO_LIMITS)
        effective[model] = msgspec.structs.replace(
            limits, min_awake=hold.awake, max_awake=hold.awake, regions=(), kinds=()
        )
    for name, (gone, kept) in stored.items():
        if gone:
            effective[name] = (
                RETIRED
                if kept is None
                else msgspec.structs.replace(kept, min_awake=0, max_awake=0, regions=(), kinds=())
            )
    return effective


async def read_list_prices(connection: AsyncConnection) -> dict[str, AnswerPrice]:
    """The list prices that hold now, by model; the batch and the priority tier follow them."""
    rows = await connection.execute(_LIST_PRICES)
    return {row.model: AnswerPrice(int(row.input), int(row.output)) for row in rows}


async def read_host_prices(connection: AsyncConnection) -> dict[str, int]:
    """By kind of host: picodollars per hour that hold now, as finance has set them."""
    rows = await connection.execute(_PRICES_NOW)
    return {row.host_kind: int(row.usd_pico_per_hour) for row in rows}


class ScalingDirectory(PolledSnapshot):
    """The stored limits and prices, read every POLL_S. The last ones stay in force while PostgreSQL does not answer."""

    def __init__(self, database: Database, *, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(
            database,
            "limits of the autoscaler",
            task="scaling",
            every_s=POLL_S,
            max_age_s=float("inf"),
            now=now,
        )
        self.limits: Mapping[str, ScalingLimits] = {}
        """By model; those without a row have NO_LIMITS."""
        self._prices: dict[str, int] = {}
        self.list_prices: Mapping[str, AnswerPrice] = {}
        """By model, as finance has set them."""
        self.contracts = Contracts()
        """Those for hosts that run, with the hosts that they may cover."""

    async def start(self) -> None:
        """Read in the background, first after POLL_S: the scheduler serves without PostgreSQL, too."""
        self._task = supervise(self._task_name, self._poll)

    def usd_per_hour(self, kind: str) -> float | None:
        """The price of a host of that kind in the books, in USD; None = the books have none."""
        pico = self._prices.get(kind)
        return None if pico is None else pico / PICO_PER_USD

    async def _read(self, connection: AsyncConnection) -> None:
        limits, prices = await read_effective_limits(connection), await read_host_prices(connection)
        list_prices, contracts = await read_list_prices(connection), await read_contracts(connection)
        self.limits, self._prices, self.list_prices = limits, prices, list_prices
        self.contracts = contracts
