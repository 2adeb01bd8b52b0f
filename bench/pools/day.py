"""A day in which a provider creates and destroys the hosts that the autoscaler asks for, on virtual time.

Every part between the load and the bill is the platform's own: the autoscaler, the plan as the scheduler stores it, the
decision on hosts (`workers.acting`), the passes over the provider and its client (`workers.providers`). The cloud is
the stand-in that tests use, the tables are in memory, and replicas are those of `penstock sim autoscale`.
"""

import math
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from uuid import UUID

import msgspec

from core.money import PICO_PER_USD
from scheduler.core.autoscale.state import HostObservation, ModelSpec, Observation, Rung
from scheduler.plan_actor import stored_plan
from scheduler.provider_hosts import ProviderHosts
from sim.digitalocean.cloud import FakeCloud
from sim.pool.autoscaling_load import Arrival
from sim.pool.autoscaling_policies import PenstockScaler
from sim.pool.autoscaling_pool import DayPool, PoolReplica
from sim.pool.autoscaling_replica import FluidReplica, RunningRequest
from tests.support.fake_droplets import TOKEN, CloudApi, MemoryStore, VirtualTime, finish
from workers.acting.decide import Money, Situation, decide_hosts
from workers.acting.places import parse_places
from workers.acting.plan import Mode, PlannedRemoval, StoredPlan
from workers.providers.ceilings import Ceilings
from workers.providers.costs import host_cost_pico
from workers.providers.digitalocean import NAME, DigitalOceanHosts, DropletOptions
from workers.providers.intents import Intent, IntentState, Retire, noted
from workers.providers.interface import DesiredHosts, HostGroup
from workers.providers.reconciler import Reconciler
from workers.scaling import ScalingLimits

REGION = "nyc2"
FLEET = "bench"
PASS_S = 10.0
"""Seconds between two passes over the provider, as jobs makes them (`jobs.hosts.EVERY_S`)."""
BOOT_S = 30
"""Seconds from an active droplet to its agent's first heartbeat; part of `HostKind.create_s`."""
SPARE = 8
"""Hosts beyond the model's maximum that the account's limit and the ceilings allow."""
UNLIMITED = 10**18


@dataclass(frozen=True, slots=True)
class HostKind:
    """The kind of host that is created."""

    slug: str
    usd_pico_per_hour: int
    per_host: int
    """Replicas of the model that one runs."""
    create_s: float
    """Seconds from the create to the agent's first heartbeat."""
    load_s: float
    """Seconds from there until its replicas serve."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The pool at one time of the day."""

    at: float
    arrivals: int
    """Requests since the sample before."""
    serving: int
    """Replicas that take requests."""
    hosts: int
    """Hosts that exist, and cost."""


@dataclass(slots=True)
class Seen:
    """What a day showed, beside the pool's own result."""

    samples: list[Sample] = field(default_factory=list)
    first_tokens: list[tuple[float, float]] = field(default_factory=list)
    """Arrival and time to the first token of every answer, in seconds."""
    interrupted: int = 0
    """Requests that ran on a host when it was destroyed."""
    host_s: float = 0.0
    """Seconds of hosts in the day, from create to destroy."""
    bill_cents: int = 0
    """The provider's bill, of the day and of the hosts that were created before it began."""
    cost_cents: int = 0
    """The platform's own cost of the same hosts."""
    created: int = 0
    destroyed: int = 0


class CloudPool(DayPool):
    """A pool of one model whose hosts are droplets."""

    def __init__(
        self, spec: ModelSpec, kind: HostKind, scaler: PenstockScaler, day_s: float, first_hosts: int
    ) -> None:
        """`first_hosts` serve when the day begins."""
        super().__init__([], [], scaler, day_s, models=[spec.model])
        self.seen = Seen()
        self._spec, self._kind, self._planner = spec, kind, scaler
        self._time = VirtualTime()
        self._cloud = FakeCloud(TOKEN, self._time.seconds)
        self._cloud.prices[kind.slug] = Fraction(kind.usd_pico_per_hour, PICO_PER_USD)
        self._cloud.create_s = round(kind.create_s) - BOOT_S
        self._cloud.droplet_limit = spec.max_awake + SPARE
        self._cloud.hourly_limit = UNLIMITED
        self._store = MemoryStore(self._time)
        self._group = HostGroup(NAME, REGION, kind.slug, spec.model)
        self._ceilings = Ceilings(spec.max_awake + SPARE, UNLIMITED)
        ids = iter(range(1, UNLIMITED))
        self._reconciler = Reconciler(
            DigitalOceanHosts(
                CloudApi(self._cloud), DropletOptions(FLEET, user_data="#!/bin/sh"), self._time.now
            ),
            self._store,
            fleet=FLEET,
            new_id=lambda: UUID(int=next(ids)),
            ceilings=self._ceilings,
        )
        self._stored: StoredPlan | None = None
        self._condemned: set[str] = set()
        """Hosts whose destruction is stored: nothing starts on them."""
        self._pass_at = 0.0
        self._arrived = 0
        self._start(first_hosts)

    def finish(self) -> Seen:
        """Read the bill at the end of the day."""
        now, began = self._time.now(), self._began
        self.seen.bill_cents = self._cloud.ledger.cents(self._time.at)
        cost = sum(host_cost_pico(one, None, now) for one in self._store.intents.values())
        self.seen.cost_cents = cost * 100 // PICO_PER_USD
        for droplet in self._cloud.droplets.values():
            end = self._time.at if droplet.gone_at is None else droplet.gone_at
            self.seen.host_s += max(0, end - max(droplet.created_at, began))
            self.seen.created += droplet.created_at >= began
            self.seen.destroyed += droplet.gone_at is not None
        return self.seen

    # The day

    def observation(self, now: float) -> Observation:
        """Return what the autoscaler sees: hosts that stay, and those on their way."""
        seen = super().observation(now)
        known = self._known()
        hosts = [host for host in seen.hosts if not known.is_leaving(host.host_id)]
        there = {host.host_id for host in seen.hosts}
        return msgspec.structs.replace(
            seen, hosts=hosts, creating=known.creating(there), failures=known.failures(_PLACES)
        )

    def _start(self, hosts: int) -> None:
        """Create the first hosts long enough before the day."""
        lead_s = round(self._kind.create_s + self._kind.load_s + 10 * PASS_S)
        lead_s += -lead_s % round(PASS_S)
        self._began = self._time.at + lead_s
        self._store.wanted = [DesiredHosts(self._group, hosts, "plan")]
        for at in range(-lead_s, 0, round(PASS_S)):
            self._pass(float(at))

    def _apply_plan(self, now: float) -> None:
        if now >= self._pass_at:
            self._pass_at += PASS_S
            self._decide(now)
            self._pass(now)
        super()._apply_plan(now)
        self._store_plan()

    def _arrive(self, arrival: Arrival) -> None:
        self._arrived += 1
        super()._arrive(arrival)

    def _wake(self, slot: PoolReplica, now: float) -> None:
        if slot.host_id not in self._condemned:
            super()._wake(slot, now)

    def _record_finished(self, run: RunningRequest, spec: ModelSpec, now: float) -> None:
        super()._record_finished(run, spec, now)
        self.seen.first_tokens.append((run.arrival.at, self.result.ttft_s[-1]))

    # What the scheduler and jobs do

    def _known(self) -> ProviderHosts:
        return ProviderHosts(self._time.now(), tuple(self._store.intents.values()))

    def _store_plan(self) -> None:
        """Keep the autoscaler's last plan as the scheduler's PlanActor does."""
        plan, known = self._planner.plan, self._known()
        if plan is None:
            return
        busy = {slot.host_id for slot in self._slots.values() if slot.holds_gpus() or slot.rung is Rung.AWAKE}
        removals = [
            PlannedRemoval(row.host_id, row.reason, row.host_id not in busy)
            for row in plan.destroy
            if known.may_destroy(row.host_id)
        ]
        self._condemned = {row.host for row in removals if row.drained}
        self._stored = stored_plan(plan, removals, known.counted)

    def _decide(self, now: float) -> None:
        """Turn the stored plan into desired hosts, as the job `act_on_plan` does."""
        self._time.at = self._began + math.floor(now)
        if self._stored is None:
            return
        instant, intents = self._time.now(), self._store.intents
        decision = decide_hosts(
            Situation(
                now=instant,
                plan=self._stored,
                desired=self._store.wanted,
                intents=list(intents.values()),
                places=_PLACES,
                providers=frozenset({NAME}),
                own=frozenset(),
                limits={
                    self._spec.model: ScalingLimits(
                        self._spec.min_awake, self._spec.max_awake, None, (self._kind.slug,)
                    )
                },
                money=Money(self._ceilings, {(NAME, self._kind.slug): self._kind.usd_pico_per_hour}, {}),
                mode=Mode.ON,
            )
        )
        for intent, why in decision.retired:
            act = Retire(intent.intent_id, why, drained=True)
            after = noted(intents[intent.intent_id], act, instant)
            intents[intent.intent_id] = msgspec.structs.replace(after, version=after.version + 1)
        if self._group in decision.desired:
            self._store.wanted = [DesiredHosts(self._group, decision.desired[self._group], "plan")]

    def _pass(self, now: float) -> None:
        """One pass over the provider; agents of hosts that run join, and hosts that are gone leave the pool."""
        self._time.at = self._began + math.floor(now)
        finish(self._reconciler.run())
        for intent in list(self._store.intents.values()):
            if intent.joined_at is None and intent.running_at is not None:
                self._join(intent, now)
        alive = {droplet.name for droplet in self._cloud.alive()}
        for host_id in [host_id for host_id in self._hosts if host_id not in alive]:
            self.seen.interrupted += self.remove_host(host_id)
        if now >= 0.0:
            serving = sum(slot.serves(now) for slot in self._slots.values())
            self.seen.samples.append(Sample(now, self._arrived, serving, len(alive)))
            self._arrived = 0

    def _join(self, intent: Intent, now: float) -> None:
        """The agent's first heartbeat, BOOT_S after the droplet is active; its checks accept the host."""
        started = intent.running_at
        if started is None or self._time.now() - started < timedelta(seconds=BOOT_S):
            return
        instant = self._time.now()
        self._store.intents[intent.intent_id] = msgspec.structs.replace(
            intent, joined_at=instant, fit_at=instant
        )
        if intent.state is not IntentState.EXISTS or not intent.wanted:
            return
        gpus = self._spec.capacity.gpus * self._kind.per_host
        usd = self._kind.usd_pico_per_hour / PICO_PER_USD
        host = HostObservation(
            intent.name, gpus, 0.0, contracted=False, usd_per_hour=usd, kind=self._kind.slug
        )
        slots = [
            PoolReplica(
                f"{intent.name}/{self._spec.model}-{place}",
                self._spec,
                intent.name,
                Rung.AWAKE,
                FluidReplica(self._spec.capacity),
                ready_at=now + self._kind.load_s,
                came_from=Rung.STOPPED,
            )
            for place in range(self._kind.per_host)
        ]
        self.add_host(host, slots, now)


_PLACES = parse_places(f"*={NAME}/{REGION}")
