"""Delayed reports about a run: metrics, KV events, an autoscaler's view."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sim.pool.calls import Call, Phase
from sim.pool.contract import ReplicaView
from sim.pool.control import ModelLoad, PoolView
from sim.pool.network import Delays
from sim.pool.sim_replica import SimReplica
from sim.pool.timeline import Timeline
from workers.ranks import target_names
from workers.wire import KvDelta, ReplicaState

REUSED_S = 600.0
"""Seconds for which a prefix block counts as in use after its last hit."""


class Scraper:
    """Scrapes the pool every half second; the metrics arrive 50-200 ms later."""

    def __init__(
        self,
        timeline: Timeline,
        delays: Delays,
        replicas: Mapping[str, SimReplica],
        deliver: Callable[[Sequence[ReplicaView]], None],
    ) -> None:
        self._timeline = timeline
        self._delays = delays
        self._replicas = replicas
        self._deliver = deliver

    def start(self) -> None:
        """Scrape everything once before the first request, then begin the periodic scrapes."""
        self._deliver(self.views())
        self._timeline.after(self._delays.network.metrics_every_s, self._scrape)

    def views(self) -> list[ReplicaView]:
        """Return the present view of every replica that has an agent."""
        now = self._timeline.now
        running = (each for each in self._replicas.values() if each.state is not ReplicaState.STOPPED)
        return [replica.view(now) for replica in running]

    def _scrape(self) -> None:
        self._timeline.after(self._delays.metrics_age_s(), self._deliver, self.views())
        self._timeline.after(self._delays.network.metrics_every_s, self._scrape)


class KvWire:
    """Carries engines' KV events to the routing system: delayed, in order, numbered per boot."""

    def __init__(self, timeline: Timeline, delays: Delays, deliver: Callable[[KvDelta], None]) -> None:
        self._timeline = timeline
        self._delays = delays
        self._deliver = deliver

    def send(
        self, replica: SimReplica, rank: int, stored: list[int], removed: list[int], *, cleared: bool = False
    ) -> None:
        """Send the latest changes of the prefix cache of a replica, or of one rank of it."""
        replica.kv_seq[rank] += 1
        name = target_names(replica.spec.replica_id, replica.spec.capacity.dp_ranks)[rank]
        delta = KvDelta(name, replica.boot_id, replica.kv_seq[rank], stored, removed, cleared)
        arrives = max(replica.kv_delivered_until, self._timeline.now + self._delays.kv_age_s())
        replica.kv_delivered_until = arrives
        self._timeline.at(arrives, self._deliver, delta)


@dataclass(slots=True)
class _Meter:
    arrived: int = 0
    prompt_tokens: int = 0
    finished: int = 0
    cached_tokens: int = 0
    finished_prompt_tokens: int = 0
    output_tokens: int = 0


class _ReusedBlocks:
    """Prefix blocks of one boot of a replica that served hits within the last REUSED_S seconds."""

    def __init__(self, boot_id: str) -> None:
        self.boot_id = boot_id
        self._hit_at: OrderedDict[int, float] = OrderedDict()

    def hit(self, blocks: Sequence[int], now: float) -> None:
        """Record that these blocks were found in the cache."""
        for block in blocks:
            self._hit_at[block] = now
            self._hit_at.move_to_end(block)

    def count(self, now: float) -> int:
        """Return the number of blocks hit recently, each once, and forget older ones."""
        while self._hit_at and next(iter(self._hit_at.values())) < now - REUSED_S:
            self._hit_at.popitem(last=False)
        return len(self._hit_at)


class LoadMeter:
    """Counts each model's load between two observations of an autoscaler, and the cached blocks that served hits."""

    def __init__(self) -> None:
        self._meters: dict[str, _Meter] = {}
        self._reused: dict[str, _ReusedBlocks] = {}

    def arrived(self, call: Call) -> None:
        """Count an arrival."""
        request = call.record.request
        meter = self._meters.setdefault(request.model, _Meter())
        meter.arrived += 1
        meter.prompt_tokens += request.prompt_tokens

    def finished(self, call: Call, replica: SimReplica, now: float) -> None:
        """Count an answer by `replica`."""
        request = call.record.request
        meter = self._meters.setdefault(request.model, _Meter())
        meter.finished += 1
        meter.cached_tokens += call.record.cached_tokens
        meter.finished_prompt_tokens += request.prompt_tokens
        meter.output_tokens += request.output_tokens
        if not replica.takes_work:
            return  # It is already asleep or stopped: its cache is gone.
        name = replica.spec.replica_id
        if name not in self._reused or self._reused[name].boot_id != replica.boot_id:
            self._reused[name] = _ReusedBlocks(replica.boot_id)
        hits = call.record.cached_tokens // request.block_tokens
        self._reused[name].hit(request.blocks[:hits], now)

    def snapshot(
        self,
        views: Sequence[ReplicaView],
        replicas: Mapping[str, SimReplica],
        calls: Iterable[Call],
        now: float,
    ) -> PoolView:
        """Return what an autoscaler observes now, and reset the counts."""
        waiting: dict[str, int] = {}
        in_flight: dict[str, int] = {}
        for call in calls:
            counts = waiting if call.phase is Phase.WAITING else in_flight
            model = call.record.request.model
            counts[model] = counts.get(model, 0) + 1
        meters, self._meters = self._meters, {}
        models = meters.keys() | waiting.keys() | in_flight.keys()
        loads = {
            model: ModelLoad(
                *_figures(meters.get(model) or _Meter()), waiting.get(model, 0), in_flight.get(model, 0)
            )
            for model in sorted(models)
        }
        levels = {name: each.sleep_level for name, each in replicas.items() if each.sleep_level}
        cached = {
            name: reused.count(now)
            for name, reused in self._reused.items()
            if reused.boot_id == replicas[name].boot_id
        }
        return PoolView(views, levels, loads, cached)


def _figures(meter: _Meter) -> tuple[int, int, int, int, int, int]:
    return (
        meter.arrived,
        meter.prompt_tokens,
        meter.finished,
        meter.cached_tokens,
        meter.finished_prompt_tokens,
        meter.output_tokens,
    )
