"""All replicas with their placements: the one place where load counters and prefix knowledge change.

The scheduler state calls it for every event, and the policy reads it. Pure: time and randomness are arguments.
"""

import math
from collections import Counter
from collections.abc import Mapping

from scheduler.core.acceptance import Acceptance
from scheduler.core.blocked import blocked
from scheduler.core.canary import Canary
from scheduler.core.capacity_estimate import CapacityEstimate
from scheduler.core.config import PolicyConfig
from scheduler.core.cost import tokens_per_block
from scheduler.core.mirror import MirroredPrefixes
from scheduler.core.placement import ActivePlacement
from scheduler.core.policy import Blocked, Choice, Chooser, Reason, Rng, place
from scheduler.core.pool import Pool
from scheduler.core.predict import PredictionReport, PrefillShare
from scheduler.core.prefix import ExactPrefixes, PrefixSource
from scheduler.core.replica import DerivedCapacity, Load, Replica, speeds, usable
from scheduler.core.replica_meter import PARTIAL_S, ReplicaMeter
from scheduler.core.rules import band_index
from scheduler.core.waking import Coming, Waker
from scheduler.core.where import Place, Where
from scheduler.wire import PlaceRequest, Released
from workers.ranks import targets_of
from workers.wire import Heartbeat, KvDelta, ReplicaState, ReplicaStatus

MIN_REPLICA_BLOCKS = 1024
"""Prefix blocks that are remembered per replica, however many replicas share the total."""


class Fleet:
    """All replicas of all models, with the load of active placements. Times are monotonic seconds."""

    def __init__(
        self, config: PolicyConfig | None = None, choose: Chooser = place, waker: Waker | None = None
    ) -> None:
        """Without a `waker` no request waits for a resting replica."""
        self.waker = waker
        self.config = config or PolicyConfig()
        self._choose = choose
        self.replicas: dict[str, Replica] = {}
        """Replicas by name, or in place of those that have ranks the ranks by `rank_id`."""
        self.reports: dict[str, PredictionReport] = {}
        """Accuracy of predictions by model."""
        self._pools: dict[str, Pool] = {}
        self._loads: dict[str, Load] = {}
        self._running: Counter[str] = Counter()
        """Active placements by replica, of all its ranks together."""

    # Events from agents

    def heartbeat(self, heartbeat: Heartbeat, now: float) -> tuple[bool, set[str]]:
        """Apply an agent's heartbeat, which lists all of its replicas.

        Returns whether replicas came, went or changed state, and the models whose queues should be served.
        """
        changed = False
        models: set[str] = set()
        moved: set[str] = set()
        listed: set[str] = set()
        for engine in heartbeat.replicas:
            for rank, status in enumerate(targets_of(engine)):
                listed.add(status.replica_id)
                known = self.replicas.get(status.replica_id)
                if known is not None and _redefined(known.status, status):
                    moved.add(self._forget(status.replica_id))
                    known = None
                if known is None:
                    own_rank = rank if len(engine.ranks) > 1 else None
                    known = self._discover(status, engine, own_rank, heartbeat.agent_id, now)
                    changed = True
                    moved.add(status.model)
                before = self._canary_facts(known, now)
                changed |= self._update(known, status, now) or _home(known.engine) != _home(engine)
                known.engine, known.agent_id = engine, heartbeat.agent_id
                if self._canary_facts(known, now) != before:
                    moved.add(status.model)
                if self.waker is not None and engine.state is ReplicaState.READY:
                    self.waker.on_ready(engine.replica_id, now)
                models.add(status.model)
        for replica_id, replica in list(self.replicas.items()):
            if replica.agent_id == heartbeat.agent_id and replica_id not in listed:
                moved.add(self._forget(replica_id))
                changed = True
        for model in moved:  # a look is over all replicas of the model, so not with each heartbeat
            changed |= (pool := self._pools.get(model)) is not None and pool.steer(now)
        return changed, models | moved

    def _canary_facts(self, replica: Replica, now: float) -> tuple[ReplicaState, str, bool]:
        """What a canary depends on: the state and version of a replica, and whether it is heard."""
        heard = now - replica.last_seen_at <= self.config.heartbeat_stale_s
        return replica.state, replica.engine.version, heard

    def _update(self, known: Replica, status: ReplicaStatus, now: float) -> bool:
        """Replace the status of a replica, or rank; returns whether its state or its engine's process has changed."""
        changed = (known.status.state, known.status.boot_id) != (status.state, status.boot_id)
        if known.status.boot_id != status.boot_id:
            known.prefix.clear()
            known.prefill_share = PrefillShare()
            known.acceptance = Acceptance()
            known.prefill_done_at = float("-inf")
        if (known.status.boot_id, speeds(known.status.capacity)) != (status.boot_id, speeds(status.capacity)):
            known.meter = _meter(status)
        known.acceptance.observe(status.counters)
        known.stated = known.acceptance.apply(status.capacity)
        known.status, known.last_seen_at, known.expected_state = status, now, None
        pool = self._pools[status.model]
        pool.learn_speed(known)
        known.derived = DerivedCapacity(status, known.capacity, self.config)
        known.heartbeats += 1
        known.prefix.room_tokens = known.derived.cache_tokens
        known.prefix.trim(now)
        pool.prefill_rate = known.derived.prefill_rate
        pool.refresh(known, now)
        return changed

    def forget_silent(self, now: float, after_s: float) -> set[str]:
        """Drop replicas without a heartbeat for `after_s` seconds; returns the models that lost one."""
        gone = [name for name, replica in self.replicas.items() if now - replica.last_seen_at > after_s]
        return {self._forget(replica_id) for replica_id in gone}

    def expect_state(self, replica_id: str, state: ReplicaState) -> None:
        """Assume that a replica, with its ranks, is in `state` until its next heartbeat, because of a command."""
        for replica in self.targets_of(replica_id):
            replica.expected_state = state
            pool = self._pools[replica.status.model]
            pool.refresh(replica, replica.last_seen_at)
            pool.steer()

    def set_canaries(self, canaries: Mapping[str, Canary], now: float) -> set[str]:
        """Send requests by these canaries, by model, from now on; returns the models for which something changed.

        A canary steers nothing while one of its versions has no replica that serves and is heard.
        """
        changed = set()
        for model, pool in self._pools.items():
            pool.canary = canaries.get(model)
            if pool.steer(now):
                changed.add(model)
        return changed

    def track_of(self, model: str, tenant_id: str, request_id: str) -> str:
        """The track of an organisation's request during a canary; empty = there is none."""
        pool = self._pools.get(model)
        return "" if pool is None or pool.canary is None else pool.canary.track_of(tenant_id, request_id)

    def kv_events(self, delta: KvDelta) -> None:
        """Apply an engine's cache events; those of another incarnation are ignored."""
        replica = self.replicas.get(delta.replica_id)
        if replica is not None and replica.status.boot_id == delta.boot_id:
            replica.prefix.apply(delta)

    def needs_resync(self, replica_id: str, now: float) -> bool:
        """Whether the replica's agent should now send the full cache state.

        This is so when deltas are missing, or when the replica was discovered on a connection that had sent it
        before.
        """
        replica = self.replicas.get(replica_id)
        exact = replica.prefix if replica is not None else None
        return isinstance(exact, ExactPrefixes) and exact.needs_resync(now)

    # Reads

    def replicas_of(self, model: str) -> list[Replica]:
        """The replicas of a model."""
        pool = self._pools.get(model)
        return list(pool) if pool is not None else []

    def targets_of(self, replica_id: str) -> list[Replica]:
        """A replica, or its ranks in order; empty when it is not known."""
        found = [replica for replica in self.replicas.values() if replica.engine.replica_id == replica_id]
        return sorted(found, key=lambda replica: replica.rank or 0)

    def running_on(self, replica_id: str) -> int:
        """Number of active placements on a replica with all its ranks, whether it is known or not."""
        return self._running[replica_id]

    def has_room(self, model: str, now: float) -> bool:
        """Whether any replica of `model` may have room for some request. When False, no placement is possible."""
        pool = self._pools.get(model)
        return pool is not None and pool.has_room(now)

    def places_of(self, model: str) -> frozenset[Place]:
        """Where the replicas of a model are, in any state."""
        pool = self._pools.get(model)
        return frozenset(_place(pool, each) for each in pool) if pool is not None else frozenset()

    def open_places(self, model: str, now: float) -> frozenset[Place]:
        """Where replicas of a model have some room."""
        pool = self._pools.get(model)
        rows = pool.open_rows(now) if pool is not None else ()
        return frozenset(_place(pool, pool.replica(row)) for row in rows) if pool is not None else frozenset()

    def largest_kv_tokens(self, model: str, where: Where) -> int:
        """The largest KV cache of a model's replicas, or ranks, in some places, in tokens; 0 = not known."""
        pool = self._pools.get(model)
        if pool is None:
            return 0
        return max(
            (each.kv_capacity for each in pool if where is None or _place(pool, each) in where), default=0
        )

    def best_hit(self, request: PlaceRequest) -> int:
        """The largest number of prompt tokens of `request` that a replica of its model is believed to hold."""
        pool = self._pools.get(request.model)
        longest = pool.longest_hit(request.blocks) if pool is not None else 0
        return min(request.prompt_tokens, int(longest * tokens_per_block(request)))

    def place(self, request: PlaceRequest, now: float, rng: Rng) -> Choice | Blocked:
        """The choice of a replica for `request`. It changes no load; that it was blocked may wake a replica."""
        pool = self._pools.get(request.model)
        found = Blocked(Reason.UNKNOWN_MODEL) if pool is None else self._choose(request, pool, now, rng)
        if not isinstance(found, Blocked):
            return found
        return blocked(self.waker, request, found, self.replicas_of(request.model))

    def wakes(self, model: str) -> bool:
        """Whether a request for `model` may wake a replica."""
        return self.waker is not None and self.waker.allowed(model)

    def ready_in_s(self, model: str, now: float) -> float | None:
        """Seconds until the first replica of `model` serves; None when that is not known or none is going to."""
        if self.waker is None:
            return None
        return self.waker.ready_in_s(model, self.replicas_of(model), now)

    def replicas_for(self, request: PlaceRequest) -> list[Replica]:
        """The replicas of a request's model that may run it: in its regions, on its GPUs, with its adapter."""
        return [
            each
            for each in self.replicas_of(request.model)
            if request.allows(each.engine.region, each.engine.gpu, adapters=each.engine.max_adapters > 0)
        ]

    def coming(self, request: PlaceRequest, now: float, stale_s: float) -> Coming:
        """What comes to serve a request where it has to run; nothing while a replica there is ready."""
        there, waker = self.replicas_for(request), self.waker
        if waker is None or any(usable(replica, now, stale_s) for replica in there):
            return Coming(False, None)
        model = request.model
        return Coming(waker.awaits(model, there, now, request), waker.ready_in_s(model, there, now, request))

    def awaits(self, model: str, now: float) -> bool:
        """Whether a replica of `model` may come to serve by itself, or wake for a request."""
        return self.waker is not None and self.waker.awaits(model, self.replicas_of(model), now)

    # Events of placements

    def on_open(self, entry: ActivePlacement, now: float | None = None) -> None:
        """Add a placement to the load. `now` is given when a client announced it, and defaults to its `placed_at`."""
        load = self._loads.get(entry.target_id)
        if load is None:
            load = self._loads[entry.target_id] = Load()
        replica, baseline, uncached = self._current(entry), entry.baseline, entry.uncached
        now = baseline.opened_at = entry.placed_at if now is None else now
        if replica is not None:
            replica.meter.advance(now, load)
        load.running += 1
        self._running[entry.replica_id] += 1
        load.decoding += entry.prefilled
        load.by_band[band_index(entry.tier)] += 1
        load.kv_tokens += uncached + entry.produced
        load.context_tokens += entry.prompt_tokens + entry.produced
        load.outstanding += _outstanding(entry)
        if not entry.prefilled:
            load.unprefilled += uncached
            load.unprefilled_pairs += entry.pairs
            if entry.predicted_ttft_s > 0.0:
                load.first_tokens_due[id(entry)] = entry.placed_at + entry.predicted_ttft_s
        if replica is None:
            return
        pool = self._pools[entry.model]
        if not entry.prefilled:
            left = uncached * pool.model_stats.uncached_ratio
            seconds = replica.derived.prefill_s(left, entry.prompt_tokens)
            replica.prefill_done_at = max(replica.prefill_done_at, now) + seconds
            pool.model_stats.observe_placement(left, entry.prompt_tokens, entry.output_tokens)
            replica.prefill_share.add(seconds, now)
        if entry.blocks:
            held = replica.prefix.on_route(entry.blocks, _block_tokens(entry), now)
            baseline.prefix_blocks, baseline.prefix_used_at = held
        pool.refresh(replica, now)

    def on_prefill(self, entry: ActivePlacement, now: float) -> None:
        """Note the first token of a placement, and learn from the time that it took."""
        if entry.prefilled:
            return
        entry.prefilled = True
        entry.first_token_at = now
        load = self._loads[entry.target_id]
        load.drop_prefill(entry.uncached, entry.pairs)
        load.first_tokens_due.pop(id(entry), None)
        replica = self._current(entry)
        if replica is None:
            load.decoding += 1
            return
        replica.meter.advance(now, load)
        load.decoding += 1
        pool = self._pools[entry.model]
        replica.prefill_done_at = now + replica.backlog_s(pool.model_stats.uncached_ratio)
        replica.prefix.on_prefill(entry.blocks, now)
        observed = entry.predicted_ttft_s > 0.0
        entry.baseline.reading = replica.meter.on_first_token(
            entry.uncached * pool.model_stats.uncached_ratio,
            entry.prompt_tokens,
            load,
            replica.stated,
            placed_at=entry.placed_at if observed else None,
        )
        pool.observed = speeds(replica.status.capacity), replica.meter.estimate
        if observed:
            self._report(entry.model).ttft.learn(entry.predicted_ttft_s, now - entry.placed_at)
        self._pools[entry.model].refresh(replica, now)

    def assume_prefilled(self, entry: ActivePlacement, now: float) -> None:
        """Take the prefill of a placement as done without learning from it: the time of its first token is unknown."""
        if not entry.prefilled:
            entry.predicted_ttft_s = entry.predicted_itl_s = 0.0
            self.on_prefill(entry, now)
            entry.first_token_at = 0.0

    def on_progress(self, entry: ActivePlacement, produced: int, now: float) -> None:
        """Note the output tokens produced so far; counts never decrease."""
        if produced <= entry.produced:
            return
        load = self._loads[entry.target_id]
        load.kv_tokens += produced - entry.produced
        load.context_tokens += produced - entry.produced
        load.outstanding -= _outstanding(entry)
        entry.produced = produced
        load.outstanding += _outstanding(entry)
        reading = entry.baseline.reading
        if reading.tokens and now - reading.at >= PARTIAL_S and (replica := self._current(entry)) is not None:
            replica.meter.advance(now, load)
            entry.baseline.reading = replica.meter.on_tokens(reading, produced, replica.stated)

    def on_close(self, entry: ActivePlacement, released: Released | None, now: float) -> None:
        """Remove a placement from the load. `released` is None when the client is lost or no longer announces it."""
        load = self._loads[entry.target_id]
        replica = self._current(entry)
        if replica is not None:
            replica.meter.advance(now, load)
        load.running -= 1
        self._running[entry.replica_id] -= 1
        if not self._running[entry.replica_id]:
            del self._running[entry.replica_id]
        load.decoding -= entry.prefilled
        load.by_band[band_index(entry.tier)] -= 1
        load.kv_tokens -= entry.uncached + entry.produced
        load.context_tokens -= entry.prompt_tokens + entry.produced
        load.outstanding -= _outstanding(entry)
        if not entry.prefilled:
            load.drop_prefill(entry.uncached, entry.pairs)
            load.first_tokens_due.pop(id(entry), None)
        if load.running == 0 and entry.target_id not in self.replicas:
            del self._loads[entry.target_id]
        if replica is not None:
            self._learn(replica, entry, released, now)
            self._pools[entry.model].refresh(replica, now)

    # Learning

    def _learn(self, replica: Replica, entry: ActivePlacement, released: Released | None, now: float) -> None:
        """Learn from an ended placement about its replica's cache and speed."""
        prefix, block_tokens = replica.prefix, _block_tokens(entry)
        if released is not None and released.failed:
            prefix.on_failure(entry.blocks, entry.prefilled, now)
            return
        if not entry.prefilled and (released is None or not released.output_tokens):
            prefix.on_abandon(entry.blocks, entry.baseline.prefix_blocks, entry.baseline.opened_at, now)
            share = self._pools[entry.model].model_stats.uncached_ratio
            replica.prefill_done_at -= replica.derived.prefill_s(entry.uncached * share, entry.prompt_tokens)
            return
        if not entry.prefilled:
            prefix.on_prefill(entry.blocks, now)
        answer = max(entry.produced, released.output_tokens if released is not None else 0)
        prefix.on_close(entry.blocks, block_tokens, answer, now)
        if released is not None and released.input_tokens:
            self._learn_hits(replica, entry, released)
        if entry.first_token_at > 0.0 and answer > 1:
            observed_s = (now - entry.first_token_at) / (answer - 1)
            replica.meter.on_tokens(entry.baseline.reading, answer, replica.stated)
            if entry.predicted_itl_s <= 0.0:
                return
            self._report(entry.model).itl.learn(entry.predicted_itl_s, observed_s)
            promised_s = replica.status.targets.of(entry.tier).tpot_s
            self._pools[entry.model].model_stats.observe_itl(
                entry.predicted_itl_s, observed_s, promised_s, entry.queued_s
            )

    def _learn_hits(self, replica: Replica, entry: ActivePlacement, released: Released) -> None:
        """Compare the cached tokens that the engine found with those that were believed.

        A full cache evicts the oldest blocks first: what is missing implies that everything older is missing. A cache
        that is not full does not keep the blocks at all: the same text has other tokens, or the engine caches
        nothing.
        """
        believed, found = entry.hit_tokens, released.cached_input_tokens
        # Scaled to the estimated length of the prompt, so that an error of the estimate is not taken for one of the
        # cache.
        found_here = found * entry.prompt_tokens / released.input_tokens
        self._pools[entry.model].model_stats.observe_prefill(entry.uncached, entry.prompt_tokens - found_here)
        if not believed:
            return
        prefix = replica.prefix
        aged = entry.placed_at - entry.baseline.prefix_used_at >= self.config.miss_age_s
        if found >= self.config.miss_share * believed or not aged:
            return
        if prefix.tokens > self.config.full_share * prefix.room_tokens:
            prefix.on_miss(entry.baseline.prefix_used_at)
        else:
            prefix.on_abandon(entry.blocks, int(found / _block_tokens(entry)), math.inf, entry.placed_at)

    def _report(self, model: str) -> PredictionReport:
        return self.reports.setdefault(model, PredictionReport())

    # Discovery and loss

    def _current(self, entry: ActivePlacement) -> Replica | None:
        """The replica of a placement, if it is still the same incarnation."""
        replica = self.replicas.get(entry.target_id)
        same = replica is not None and (replica.status.boot_id, replica.status.model) == (
            entry.boot_id,
            entry.model,
        )
        return replica if same else None

    def _discover(
        self, status: ReplicaStatus, engine: ReplicaStatus, rank: int | None, agent_id: str, now: float
    ) -> Replica:
        pool = self._pools.setdefault(status.model, Pool(self.config))
        load = self._loads.setdefault(status.replica_id, Load())
        row = pool.next_row()
        source, capacity = self._source(status, pool, row), status.capacity
        derived = DerivedCapacity(status, capacity, self.config)
        found = Replica(
            status,
            engine,
            rank,
            agent_id,
            now,
            load,
            source,
            PrefillShare(),
            _meter(status),
            capacity,
            capacity,
            row,
            derived,
        )
        self.replicas[status.replica_id] = found
        pool.add(found)
        self._divide_memory()
        return found

    def _source(self, status: ReplicaStatus, pool: Pool, row: int) -> PrefixSource:
        limit = self.config.max_replica_blocks
        if status.prefix_kind == "tokens":
            return ExactPrefixes(pool.index, 1 << row, 0, limit, self.config.kv_event_grace_s)
        return MirroredPrefixes(pool.tree, row, 0, limit)

    def _forget(self, replica_id: str) -> str:
        replica = self.replicas.pop(replica_id)
        pool = self._pools[replica.status.model]
        pool.remove(replica)
        if not len(pool):
            del self._pools[replica.status.model]
        if replica.load.running == 0:
            self._loads.pop(replica_id, None)
        self._divide_memory()
        return replica.status.model

    def _divide_memory(self) -> None:
        """Divide the remembered prefix blocks evenly among the replicas."""
        share = self.config.max_blocks // max(1, len(self.replicas))
        limit = max(MIN_REPLICA_BLOCKS, min(self.config.max_replica_blocks, share))
        for replica in self.replicas.values():
            replica.prefix.max_entries = limit


def _place(pool: Pool, replica: Replica) -> Place:
    engine, steering = replica.engine, pool.steering
    track = steering.track_of_replica(engine.version, replica.agent_id) if steering is not None else ""
    return engine.region.lower(), engine.gpu.lower(), track, engine.max_adapters > 0


def _home(engine: ReplicaStatus) -> tuple[str, str, str, bool]:
    """What of a replica requests may be bound to."""
    return engine.region, engine.gpu, engine.version, engine.max_adapters > 0


def _redefined(known: ReplicaStatus, status: ReplicaStatus) -> bool:
    """Whether a replica has another model or prefix kind under the same name."""
    return (known.model, known.prefix_kind) != (status.model, status.prefix_kind)


def _meter(status: ReplicaStatus) -> ReplicaMeter:
    """A meter that has learnt nothing."""
    return ReplicaMeter(CapacityEstimate(assumed=status.capacity.assumed))


def _outstanding(entry: ActivePlacement) -> int:
    return max(0, entry.output_tokens - entry.produced)


def _block_tokens(entry: ActivePlacement) -> float:
    """Tokens in each block of a placement's prompt."""
    if entry.block_tokens:
        return entry.block_tokens
    return max(1.0, entry.prompt_tokens / max(1, len(entry.blocks)))
