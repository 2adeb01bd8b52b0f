"""The replicas of one model, or their ranks, in columns: a decision takes a few vector operations for 256 replicas.

`Replica` and `Load` hold the state; `inputs` is derived from them whenever one changes.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from scheduler.core.canary import CANARY, STABLE, Canary
from scheduler.core.capacity_estimate import CapacityEstimate
from scheduler.core.config import PolicyConfig
from scheduler.core.cost import Gate, ScoreInputs, Vector
from scheduler.core.model_stats import ModelStats
from scheduler.core.prefix_index import PrefixIndex
from scheduler.core.prefix_tree import PrefixTree
from scheduler.core.replica import Replica, alike, speeds
from scheduler.core.rules import BANDS
from scheduler.wire import PlaceRequest
from workers.step_time import decode_step_s, sequence_s
from workers.wire import ReplicaState

INITIAL_ROWS = 8
"""Rows of the table at first; it doubles when it is full."""
INFINITE = float("inf")
EMPTY_ROW: ScoreInputs[float] = ScoreInputs(-INFINITE, *[0.0] * (len(ScoreInputs._fields) - 1))
"""Inputs of a free row."""
CLOSED: Gate[float] = Gate(-INFINITE, -INFINITE, 0.0)
"""The gate of a free row."""
GATES_AT = len(EMPTY_ROW)
"""First row of the table that holds gates: those of the first band, then of the others."""
MIN_HIT_SHARE = 1 / 16
"""Smallest part of a prompt that is looked up: smaller parts are held by many replicas and change little."""
MIN_PREFILL_SHARE = 0.1
"""Smallest share of a replica's time that is granted to prefill."""
FIRST_STEPS = 1.5
"""Decode steps in a time to first token: half of the one in progress, and the one that the prompt shares."""
MAX_SCALAR_BITS = 12
"""Matching replicas up to which hits are written one by one; above, as a vector."""


class Pool:
    """All replicas of one model in columns, and their cached prefixes. A freed row is used again."""

    def __init__(self, config: PolicyConfig) -> None:
        self.config = config
        self.index = PrefixIndex()
        """Prefixes of replicas whose engines report their caches."""
        self.tree = PrefixTree()
        """Prefixes of replicas whose caches are mirrored."""
        self.prefill_rate = 1.0
        """R of the replica with the last heartbeat, in tokens per second."""
        self.model_stats = ModelStats(config)
        """Statistics of the model's answers."""
        self.observed: tuple[tuple[float, ...], CapacityEstimate] | None = None
        """Of the replica whose speed was observed last: what it states, and what is learnt."""
        self.canary: Canary | None = None
        """The canary of the model, if it has one."""
        self.steering: Canary | None = None
        """The same while both versions serve. Otherwise all requests use what there is."""
        self._steered_at = -INFINITE
        self._rows_off_track: dict[str, list[int]] = {}
        """By track of a canary: the rows that its requests may not use."""
        self._open_rows: set[int] = set()
        """Rows that are open and have some room."""
        self.inputs: list[ScoreInputs[float]] = []
        """The score inputs of each row."""
        self._rows: list[Replica | None] = []
        self._rows_of: dict[str, list[int]] = {}
        """By replica: its row, or those of its ranks."""
        self._count = 0
        self.gates: list[tuple[Gate[float], ...]] = []
        """What each row takes, by band."""
        self._table = np.zeros((GATES_AT + len(BANDS) * len(CLOSED), INITIAL_ROWS))
        self._columns: ScoreInputs[Vector] = ScoreInputs(*self._table[:GATES_AT, :0])
        self._dirty_rows: set[int] = set()
        """Rows whose inputs have changed since they were written to the table, which is read more rarely."""

    @property
    def columns(self) -> ScoreInputs[Vector]:
        """The inputs of all rows, used or free, as vectors."""
        self._write()
        return self._columns

    def gate_columns(self, band: int) -> Gate[Vector]:
        """What all rows take of a band, as vectors."""
        self._write()
        start = GATES_AT + band * len(CLOSED)
        return Gate(*self._table[start : start + len(CLOSED), : len(self._rows)])

    def _write(self) -> None:
        """Write the changed rows to the table."""
        for row in self._dirty_rows:
            self._table[:, row] = [*self.inputs[row], *chain.from_iterable(self.gates[row])]
        self._dirty_rows.clear()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Replica]:
        return (replica for replica in self._rows if replica is not None)

    @property
    def size(self) -> int:
        """Rows, used or free: the length of every column."""
        return len(self._rows)

    def replica(self, row: int) -> Replica:
        """The replica of a row. Raises LookupError when the row is free."""
        found = self._rows[row]
        if found is None:
            raise LookupError(f"row {row} is free")
        return found

    def rows_of(self, replica_id: str) -> Sequence[int]:
        """The row of a replica of this model, or those of its ranks; empty when it is not known."""
        return self._rows_of.get(replica_id, ())

    def closed_to(self, request: PlaceRequest) -> list[int]:
        """Rows that `request` may not use, whatever their load: it has failed there, asks for another region or
        other GPUs, uses another version during a canary, or names an adapter that its engine cannot take."""
        closed = [row for replica_id in request.exclude for row in self.rows_of(replica_id)]
        if self.steering is not None and request.track:
            closed += self._rows_off_track[request.track]
        if request.regions or request.gpus:
            closed += [
                replica.row
                for replica in self
                if not request.allows(replica.engine.region, replica.engine.gpu)
            ]
        if request.adapter:
            closed += [replica.row for replica in self if not replica.engine.max_adapters]
        return closed

    def without_adapter(self, name: str) -> list[int]:
        """Rows whose engine would have to load an adapter first."""
        return [replica.row for replica in self if name not in replica.engine.adapters]

    def steer(self, now: float | None = None) -> bool:
        """Look whether both versions of a canary serve at `now`, or at the last look; returns whether that has changed.

        A replica serves while it is ready and its agent is heard. To be called when a replica comes or goes, or changes
        its state or version.
        """
        before, canary = self.steering, self.canary
        self._steered_at = self._steered_at if now is None else now
        self.steering = None
        if canary is not None:
            serving: set[str] = set()
            self._rows_off_track = {CANARY: [], STABLE: []}
            for each in self:
                track = canary.track_of_replica(each.engine.version, each.agent_id)
                self._rows_off_track[STABLE if track == CANARY else CANARY].append(each.row)
                heard = self._steered_at - each.last_seen_at <= self.config.heartbeat_stale_s
                if heard and each.state is ReplicaState.READY:
                    serving.add(track)
            self.steering = canary if len(serving) > 1 else None
        return self.steering != before

    def next_row(self) -> int:
        """The row that the next replica takes."""
        return next((row for row, replica in enumerate(self._rows) if replica is None), len(self._rows))

    def add(self, replica: Replica) -> None:
        """Add a replica at its row, which `next_row` has returned."""
        if replica.row == len(self._rows):
            self._rows.append(replica)
            self.inputs.append(EMPTY_ROW)
            self.gates.append((CLOSED,) * len(BANDS))
            count, room = len(self._rows), self._table.shape[1]
            if count > room:
                self._table = np.zeros((len(self._table), 2 * room))
                self._dirty_rows.update(range(room))
            self._columns = ScoreInputs(*self._table[:GATES_AT, :count])
            self._dirty_rows.add(replica.row)
        else:
            self._rows[replica.row] = replica
        self._rows_of.setdefault(replica.engine.replica_id, []).append(replica.row)
        self._count += 1

    def remove(self, replica: Replica) -> None:
        """Remove a replica and its cached prefixes."""
        replica.prefix.clear()
        self._rows[replica.row] = None
        rows = self._rows_of[replica.engine.replica_id]
        rows.remove(replica.row)
        if not rows:
            del self._rows_of[replica.engine.replica_id]
        self._count -= 1
        self.inputs[replica.row] = EMPTY_ROW
        self.gates[replica.row] = (CLOSED,) * len(BANDS)
        self._dirty_rows.add(replica.row)
        self._open_rows.discard(replica.row)

    def learn_speed(self, replica: Replica) -> None:
        """Believe what a replica's answers show of its speed, in place of what it states.

        A replica without answers is believed to err as the model's last one that states the same; otherwise it would be
        preferred or avoided for what is merely not known of it.
        """
        estimate, stated = replica.meter.estimate, replica.stated
        if not estimate.count and self.observed is not None and alike(self.observed[0], speeds(stated)):
            estimate.inherit(self.observed[1])
        replica.capacity = estimate.apply(stated)

    def refresh(self, replica: Replica, now: float) -> None:
        """Derive the row of a replica whose state has changed: the inputs of its score, and its gates."""
        config, row, capacity, derived = self.config, replica.row, replica.capacity, replica.derived
        load = replica.load
        running, kv_tokens = replica.running, replica.kv_tokens
        accept, per_token, per_kv = derived.accept, derived.prefill_s_per_token, derived.itl_per_kv
        share, ranks = replica.prefill_share.at(now), capacity.dp_ranks
        context = replica.context_tokens
        step = decode_step_s(capacity, running + 1, context)
        itl = step / (accept * (1.0 - share))
        awake = running < derived.slots and replica.state is ReplicaState.READY
        until = replica.last_seen_at + config.heartbeat_stale_s if awake else -INFINITE
        kv_room = INFINITE
        if running:
            planned = kv_tokens + config.kv_reserve * load.outstanding
            kv_room = config.kv_fill * derived.kv_capacity - planned
        self.gates[row] = gates = self._gates(replica, step / accept, until, share)
        believed = 1.0 if load.overdue(now) else config.backlog_floor
        self.inputs[row] = ScoreInputs(
            until,
            kv_room,
            replica.prefill_done_at,
            believed * replica.backlog_s(self.model_stats.uncached_ratio),
            capacity.request_s + FIRST_STEPS * step,
            per_token * ranks,
            derived.prefill_pair_s * ranks,
            1.0 + config.eta * running / ranks,
            itl,
            itl + config.eta * running * sequence_s(capacity, running) / accept,
            per_kv,
        )
        self._dirty_rows.add(row)
        if kv_room > 0.0 and any(gate.warm_until > -INFINITE for gate in gates):
            self._open_rows.add(row)
        else:
            self._open_rows.discard(row)

    def _gates(
        self, replica: Replica, batch_s: float, until: float, prefill_share: float
    ) -> tuple[Gate[float], ...]:
        """What a replica takes of each band, when its batch would take `batch_s` seconds per token with one more.

        `until` is when it takes requests without another heartbeat; -inf = it takes none.
        """
        config, running, derived = self.config, replica.running, replica.derived
        per_kv, targets = derived.itl_per_kv, derived.targets_itl_s
        slacks = (config.warm_slack,) * len(BANDS)
        if derived.targets_differ:
            targets = tuple([replica.target_itl_s(band) for band in range(len(BANDS))])
            # What is promised to a higher tier that runs here is not given away.
            slacks = tuple(
                [1.0 if any(replica.load.by_band[:band]) else config.warm_slack for band in range(len(BANDS))]
            )
        limits = tuple(zip(targets, slacks, strict=True))
        by_limit: dict[tuple[float, float], Gate[float]] = {}
        for target_s, slack in set(limits):
            limit_s = self._itl_limit_s(replica, target_s, prefill_share)
            warm = not running or batch_s <= limit_s * slack
            short = replica.status.waiting <= config.max_engine_waiting
            is_open = short and (not running or batch_s <= limit_s)
            by_kv = (limit_s - batch_s) / per_kv if running and per_kv > 0 else INFINITE
            by_limit[target_s, slack] = Gate(
                until if is_open else -INFINITE, until if warm else -INFINITE, by_kv
            )
        return tuple([by_limit[limit] for limit in limits])

    def _itl_limit_s(self, replica: Replica, target_s: float, prefill_share: float) -> float:
        """Seconds per output token that a batch may take without prefill, where `target_s` is promised.

        The usable share of the target per token (`ModelStats.itl_slack`), less the part that prefill takes: `limit =
        target * (1 - phi)`. Phi is capped at its value for the highest rate of typical requests that keeps the
        target, with a seconds of prefill and o output tokens each (b = o*beta/accept). W, the time of the experts,
        is that of the present batch:

            alpha + W + gamma*K + beta*B = S*(1 - phi), B = rate*o*S/accept, phi = rate*a, S = target*accept
            => phi = (1 - (alpha + W + gamma*K)/S) * a/(a + b)

        A higher phi means that the engine works off a prefill backlog; fewer running answers would not end it.
        """
        capacity, derived, stats = replica.capacity, replica.derived, self.model_stats
        promised_s = max(stats.itl_slack * target_s, derived.min_itl_s)
        prefill_s = (
            stats.typical_uncached * derived.prefill_s_per_token
            + stats.typical_pairs * derived.prefill_pair_s
        )
        decode_s = stats.typical_output * capacity.step_per_seq_s / derived.accept
        batch = replica.running + 1
        fixed_s = decode_step_s(capacity, batch, replica.context_tokens) - capacity.step_per_seq_s * batch
        sustained = (
            (1.0 - fixed_s / (promised_s * derived.accept)) * prefill_s / max(prefill_s + decode_s, 1e-9)
        )
        return promised_s * (1.0 - min(max(sustained, MIN_PREFILL_SHARE), prefill_share))

    def match(self, blocks: Sequence[int], among: int = -1) -> list[tuple[int, int]]:
        """Rows of `among` (a bitmask) with their numbers of leading blocks of a chain, without shares below
        MIN_HIT_SHARE."""
        least = len(blocks) * MIN_HIT_SHARE
        found = self.tree.match(blocks, least, among)
        return found + self.index.match(blocks, least, among) if len(self.index) else found

    def longest_hit(self, blocks: Sequence[int]) -> int:
        """The largest number of leading blocks of a chain that a row holds."""
        known = self.tree.longest_hit(blocks)
        return max(known, *(depth for _, depth in self.index.match(blocks)), 0) if len(self.index) else known

    def hits(self, matches: list[tuple[int, int]], tokens_per_block: float, limit: int) -> Vector:
        """Cached tokens of a prompt per row, from matches of the prefix index; at most `limit`."""
        size = len(self._rows)
        if sum(bits.bit_count() for bits, _ in matches) <= MAX_SCALAR_BITS:
            hits = np.zeros(size)
            for bits, depth in matches:
                tokens = min(depth * tokens_per_block, limit)
                while bits:
                    low = bits & -bits
                    hits[low.bit_length() - 1] = tokens
                    bits ^= low
        else:
            width = (size + 7) // 8
            raw = np.frombuffer(b"".join([bits.to_bytes(width, "little") for bits, _ in matches]), np.uint8)
            held = np.unpackbits(raw, bitorder="little").reshape(len(matches), 8 * width)[:, :size]
            tokens_held = np.array([depth for _, depth in matches], np.float64) * tokens_per_block
            hits = np.minimum(tokens_held, limit) @ held
        return hits

    def has_room(self, now: float) -> bool:
        """Whether any replica may have room for some request. When False, no placement is possible."""
        limit = max(self.config.backlog_cold_s, self.config.backlog_warm_s)
        for row in self._open_rows:
            inputs = self.inputs[row]
            if inputs.awake_until >= now and max(inputs.prefill_done_at - now, inputs.min_backlog_s) <= limit:
                return True
        return False

    def open_rows(self, now: float) -> list[int]:
        """The open rows with some room, in order; no other row can be chosen."""
        return sorted([row for row in self._open_rows if self.inputs[row].awake_until >= now])
