"""Demand and needed replicas of one model.

At every observation the capacity laws are applied to the measured rate, and it is checked whether a burst exceeds that
rate and whether queued and running requests can be served in time.
"""

import math
from collections import deque

import msgspec

from scheduler.core.autoscale.capacity import DEFAULT_MARGINS, MIN_RATE, Load, Margins, needed, shortfall
from scheduler.core.autoscale.ladder import next_rung
from scheduler.core.autoscale.meter import DemandMeter
from scheduler.core.autoscale.state import DemandObservation, ModelSpec, Observation, ReplicaObservation, Rung
from scheduler.core.autoscale.surge import burst_rate, needed_for_backlog, needed_for_running

UNKNOWN_WAKE_S = 60.0
"""Seconds to wake a replica when the ladder has no figure for its rung."""


class AutoscalerSettings(msgspec.Struct, frozen=True):
    """Tunables of the autoscaler."""

    margins: Margins = DEFAULT_MARGINS
    z: float = 2.33
    """Standard deviations of the measured rate that are covered by spare replicas; 2.33 = 99 % of cases."""
    stabilization_s: float = 300.0
    """Seconds for which all observations must allow the removal of a replica."""
    tolerance: float = 0.08
    """Share of additional load that the remaining replicas must carry, so that noise does not wake the replica
    again."""
    swap_stabilization_s: float = 60.0
    """Seconds for which a replica must have been spare before another model may take its GPUs."""
    host_idle_s: float = math.inf
    """Most seconds for which a host without awake replicas is kept, whatever a new one would cost."""


class ModelPlanner:
    """The state of one model's planning. Times are monotonic seconds."""

    def __init__(
        self, spec: ModelSpec, settings: AutoscalerSettings, meter: DemandMeter | None = None
    ) -> None:
        self.spec = spec
        self.meter = meter or DemandMeter()
        self.planned_rate = 0.0
        """Arrivals per second that are planned for."""
        self.need = 0
        """Replicas needed at the last observation."""
        self.held = 0
        """Requests that waited for a replica then."""
        self.busy = False
        """Whether requests ran or waited then."""
        self.reason = ""
        self._settings = settings
        self._needs: deque[tuple[float, int, int]] = deque()
        """(time, replicas needed, replicas to keep) of the observations within `stabilization_s`, and of one before."""

    def update_spec(self, spec: ModelSpec) -> None:
        """Plan with another specification. The measured demand is kept; needs found before are dropped."""
        self.spec = spec
        self._needs.clear()

    def observe(
        self,
        observation: Observation,
        seen: DemandObservation,
        elapsed_s: float,
        replicas: list[ReplicaObservation],
    ) -> None:
        """Measure, and compute the needed replicas. `elapsed_s`: seconds since the last observation."""
        self.meter.observe(seen, elapsed_s)
        self.held = seen.waiting
        self.busy = seen.waiting > 0 or any(replica.running for replica in replicas)
        meter, z = self.meter, self._settings.z
        self.planned_rate = meter.rate + z * meter.rate_sigma if meter.rate >= MIN_RATE else 0.0
        self.need, self.reason = self._need(seen, replicas)
        kept = self._needed(self.planned_rate * (1.0 + self._settings.tolerance))
        self._needs.append((observation.now, self.need, max(self.need, kept)))
        # The newest one before the window stays, since it tells that the whole window was observed.
        while len(self._needs) > 1 and self._needs[1][0] <= observation.now - self._settings.stabilization_s:
            self._needs.popleft()

    def max_needed(self, since: float) -> int:
        """The largest need of all observations since then."""
        return max((need for at, need, _ in self._needs if at >= since), default=self.need)

    def max_kept(self, since: float) -> int:
        """The largest number of replicas to keep, with the tolerance, since then."""
        return max((keep for at, _, keep in self._needs if at >= since), default=self.need)

    def observed_since(self, when: float) -> bool:
        """Whether observations reach back to `when`."""
        return bool(self._needs) and self._needs[0][0] <= when + 1e-6

    def shortfall(self, replicas: int) -> str:
        """What `replicas` replicas lack, in words; empty when they suffice."""
        return shortfall(self.load, replicas, self.spec.capacity, self.spec.targets, self._settings.margins)

    @property
    def load(self) -> Load:
        """The load that is planned for."""
        return self.meter.load(self.planned_rate)

    def _need(self, seen: DemandObservation, replicas: list[ReplicaObservation]) -> tuple[int, str]:
        """Replicas for the planned rate, or more when a burst exceeds it or when queued or running requests would be
        too slow; and the reason."""
        spec, meter = self.spec, self.meter
        need, reason = (
            self._needed(self.planned_rate),
            f"{meter.rate:.2f} req/s, planned {self.planned_rate:.2f}",
        )
        burst = burst_rate(meter, self.planned_rate)
        if burst > 0.0 and (found := self._needed(burst)) > need:
            need, reason = found, f"surge to {burst:.2f} req/s"
        serving = [replica for replica in replicas if replica.rung is Rung.AWAKE]
        backlog = seen.waiting_tokens + sum(replica.waiting_tokens for replica in serving)
        wake_s = self._wake_s(next_rung(spec, replicas))
        helped_s = max((replica.ready_in_s for replica in serving), default=wake_s)
        load = meter.load(meter.rate if meter.rate >= MIN_RATE else 0.0)
        # Those that the rate needs come in any case, and prefill what arrives.
        working = max(len(serving), need)
        urgent = needed_for_backlog(
            load, backlog, working, max(wake_s, helped_s), spec.capacity, spec.targets
        )
        if urgent > need:
            need, reason = urgent, f"{backlog:.0f} prompt tokens wait and {meter.rate:.2f} req/s come"
        running = sum(replica.running for replica in serving)
        if running and (busy := needed_for_running(load, running, spec.capacity, spec.targets)) > need:
            need, reason = (
                busy,
                f"{running} answers run, too many for {1000 * spec.targets.tpot_s:.0f} ms a token",
            )
        if seen.waiting and not serving:
            need, reason = max(need, 1), f"{seen.waiting} requests are held ({reason})"
        # One more than there are requests would serve none of them.
        if need > (most := max(1, math.ceil(meter.recent), seen.waiting + running)):
            need, reason = most, f"{reason}; as many as requests came"
        return min(max(need, spec.min_awake), spec.max_awake), reason

    def _wake_s(self, rung: Rung) -> float:
        figures = self.spec.ladder.get(rung)
        return figures.wake_s if figures is not None else UNKNOWN_WAKE_S

    def _needed(self, rate: float) -> int:
        spec = self.spec
        load = self.meter.load(rate)
        return needed(load, spec.capacity, spec.targets, self._settings.margins, at_most=spec.max_awake)
