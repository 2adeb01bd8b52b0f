"""Demand, forecast and needed replicas of one model.

The slow loop closes a bin of arrivals, forecasts and applies the capacity laws. The fast loop, at every observation,
checks whether arrivals exceed the forecast and whether queued and running requests can be served in time.
"""

from collections import deque

import msgspec

from scheduler.core.autoscale.capacity import DEFAULT_MARGINS, Load, Margins, needed, shortfall
from scheduler.core.autoscale.forecast import Forecaster, Smoothing
from scheduler.core.autoscale.ladder import next_rung
from scheduler.core.autoscale.meter import DemandMeter
from scheduler.core.autoscale.state import DemandObservation, ModelSpec, Observation, ReplicaObservation, Rung
from scheduler.core.autoscale.surge import BURST_Z, needed_for_backlog, needed_for_running, surge_rate

UNKNOWN_WAKE_S = 60.0
"""Seconds to wake a replica when the ladder has no figure for its rung."""


class AutoscalerSettings(msgspec.Struct, frozen=True):
    """Tunables of the autoscaler."""

    margins: Margins = DEFAULT_MARGINS
    smoothing: Smoothing = Smoothing()
    z: float = 2.33
    """Standard deviations of the forecast error that are covered by spare replicas; 2.33 = 99 % of cases."""
    stabilization_s: float = 300.0
    """Seconds for which all observations must allow the removal of a replica."""
    tolerance: float = 0.08
    """Share of additional load that the remaining replicas must carry, so that noise does not wake the replica
    again."""
    swap_stabilization_s: float = 60.0
    """Seconds for which a replica must have been spare before another model may take its GPUs."""
    forecasting: bool = True
    """False = plan for the present rate, to measure the benefit of forecasts."""


class ModelPlanner:
    """The state of one model's planning. Times are monotonic seconds."""

    def __init__(self, spec: ModelSpec, settings: AutoscalerSettings) -> None:
        self.spec = spec
        self.meter = DemandMeter()
        self.planned_rate = 0.0
        """Arrivals per second that are planned for."""
        self.need = 0
        """Replicas needed at the last observation."""
        self.reason = ""
        self._settings = settings
        self._forecasters: dict[Rung, Forecaster] = {}
        self._add_forecasters()
        self._bin_arrivals = 0
        self._bin_began: float | None = None
        self._bin_ended_tod = 0.0
        self._needs: deque[tuple[float, int, int]] = deque()
        """(time, replicas needed, replicas to keep) of the observations within `stabilization_s`."""
        self._slow = (0, 0)
        self._slow_rung: Rung | None = None
        self._reason = ""

    def update_spec(self, spec: ModelSpec) -> None:
        """Plan with another specification. Demand and forecasts are kept; needs found before are dropped."""
        self.spec = spec
        self._add_forecasters()
        self._needs.clear()
        self._slow_rung = None

    def observe(
        self,
        observation: Observation,
        seen: DemandObservation,
        elapsed_s: float,
        replicas: list[ReplicaObservation],
    ) -> None:
        """Measure, forecast and compute the needed replicas. `elapsed_s`: seconds since the last observation."""
        self.meter.observe(seen, elapsed_s)
        closed = self._fill_bin(observation, seen)
        rung = next_rung(self.spec, replicas)
        if closed or rung is not self._slow_rung or not self._forecasts(rung):
            self._slow_rung = rung
            self._slow_loop(rung)
        self._fast_loop(seen, replicas, self._wake_s(rung))
        self._needs.append((observation.now, self.need, max(self.need, self._slow[1])))
        while self._needs[0][0] < observation.now - self._settings.stabilization_s:
            self._needs.popleft()

    def add_history(self, arrivals: int, time_of_day_s: float) -> None:
        """Add a bin of arrivals that ended at `time_of_day_s` to the forecasts."""
        for forecaster in self._forecasters.values():
            forecaster.count(arrivals, time_of_day_s)

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

    def _add_forecasters(self) -> None:
        """Add a forecaster for each rung. Its horizon is the wake time and one bin, because the next forecast comes a
        bin later."""
        smoothing = self._settings.smoothing
        for rung, figures in self.spec.ladder.items():
            if rung not in self._forecasters:
                self._forecasters[rung] = Forecaster(figures.wake_s + smoothing.bin_s, smoothing)

    def _fill_bin(self, observation: Observation, seen: DemandObservation) -> bool:
        """Count arrivals; returns whether a bin was closed."""
        if self._bin_began is None:
            self._bin_began = observation.now
            return False
        self._bin_arrivals += seen.arrivals
        length, took = self._settings.smoothing.bin_s, observation.now - self._bin_began
        if took < length - 1e-6:
            return False
        # A late observation makes the bin longer; its arrivals are scaled to the length of a bin.
        self.add_history(round(self._bin_arrivals * length / took), observation.time_of_day_s)
        self._bin_ended_tod = observation.time_of_day_s
        self._bin_began, self._bin_arrivals = observation.now, 0
        return True

    def _forecasts(self, rung: Rung) -> bool:
        forecaster = self._forecasters.get(rung)
        return self._settings.forecasting and forecaster is not None and forecaster.ready

    def _wake_s(self, rung: Rung) -> float:
        figures = self.spec.ladder.get(rung)
        return figures.wake_s if figures is not None else UNKNOWN_WAKE_S

    def _slow_loop(self, rung: Rung) -> None:
        """Forecast to the time when a replica from `rung` would serve, and apply the capacity laws to the upper
        estimate."""
        z = self._settings.z
        if self._forecasts(rung):
            forecast = self._forecasters[rung].forecast(self._bin_ended_tod)
            self.planned_rate = forecast.upper(z)
            within = self._wake_s(rung)
            self._reason = f"forecast {forecast.rate:.2f}+-{forecast.sigma:.2f} req/s within {within:.0f} s"
        else:
            self.planned_rate = self.meter.rate + z * self.meter.rate_sigma if self.meter.rate > 0.0 else 0.0
            self._reason = f"{self.meter.rate:.2f} req/s now"
        self._slow = (
            self._needed(self.planned_rate),
            self._needed(self.planned_rate * (1.0 + self._settings.tolerance)),
        )

    def _fast_loop(self, seen: DemandObservation, replicas: list[ReplicaObservation], wake_s: float) -> None:
        """Raise the need when arrivals exceed the forecast, or when queued or running requests would be too slow."""
        spec, reason, target = self.spec, self._reason, self._slow[0]
        meter = self.meter
        surge = max(
            surge_rate(meter.rate, meter.rate_sigma, self.planned_rate),
            surge_rate(meter.burst, meter.burst_sigma, self.planned_rate, BURST_Z),
        )
        if surge > 0.0 and (found := self._needed(surge)) > target:
            target, reason = found, f"surge to {surge:.2f} req/s"
        serving = [replica for replica in replicas if replica.rung is Rung.AWAKE]
        backlog = seen.waiting_tokens + sum(replica.waiting_tokens for replica in serving)
        helped_s = max((replica.ready_in_s for replica in serving), default=wake_s)
        load = self.meter.load(self.meter.rate)
        urgent = needed_for_backlog(
            load, backlog, len(serving), max(wake_s, helped_s), spec.capacity, spec.targets
        )
        if urgent > target:
            target, reason = urgent, f"{backlog:.0f} prompt tokens wait and {self.meter.rate:.2f} req/s come"
        running = sum(replica.running for replica in serving)
        if running and (busy := needed_for_running(load, running, spec.capacity, spec.targets)) > target:
            target, reason = (
                busy,
                f"{running} answers run, too many for {1000 * spec.targets.tpot_s:.0f} ms a token",
            )
        self.need = min(max(target, spec.min_awake), spec.max_awake)
        self.reason = reason

    def _needed(self, rate: float) -> int:
        spec = self.spec
        load = self.meter.load(rate)
        return needed(load, spec.capacity, spec.targets, self._settings.margins, at_most=spec.max_awake)
