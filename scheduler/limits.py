"""Validates the figures of peers: what reaches the scheduler state is finite and in range.

msgpack carries NaN, infinities and 64-bit integers, and engines report NaN in their metrics. One such figure in a
cost or an age would end the service's decision loop.
"""

import math

import msgspec

from scheduler.messages import Announce, ClientBatch, FromClient
from scheduler.wire import PlaceRequest
from workers.ranks import MAX_RANKS
from workers.wire import EndedEngine, LifeTimes, ReplicaStatus, StageTime, TierTargets

MAX_TOKENS = 1 << 30
"""Most tokens of a request or of a replica's cache, far above those of any model."""
MAX_AGE_S = 86_400.0
"""Largest age of an announced request, a placement or an ended engine, in seconds."""
MAX_BYTES = 1 << 60
"""Most bytes of weights."""
MAX_ENDS = 256
"""Ended engines of one heartbeat."""
MAX_SERVICE = 1e15
"""Largest counter: beyond it a float cannot represent single tokens."""
MAX_STEP_S = 3_600.0
"""Longest step time or target, in seconds."""
MIN_STEP_S = 1e-6
"""Shortest step time or target, in seconds, because they are divided by."""
MAX_RATE = 1e9
"""Largest prefill rate, in tokens per second."""
MIN_RATE = 1e-3
"""Smallest prefill rate (tokens per second) and smallest yield per step, because they are divided by."""


def clamp_client_message(message: FromClient) -> None:
    """Bring a client's figures into range, in place."""
    match message:
        case ClientBatch():
            _batch(message)
        case Announce():
            _announce(message)


def valid_replicas(statuses: list[ReplicaStatus]) -> tuple[list[ReplicaStatus], list[str]]:
    """The replicas of a heartbeat with valid figures, and the names of the others.

    Measured values are brought into range. A capacity or target that is out of range makes the replica invalid.
    """
    good, bad = [], []
    for status in statuses:
        if not _is_valid(status):
            bad.append(status.replica_id)
            continue
        status.kv_usage = _within(status.kv_usage, 1.0)
        status.running, status.waiting = _count(status.running), _count(status.waiting)
        status.kv_blocks, status.block_size = _count(status.kv_blocks), _count(status.block_size)
        status.phase_s, status.times = _within(status.phase_s, MAX_AGE_S), _times(status.times)
        status.weights_total_bytes = min(max(status.weights_total_bytes, 0), MAX_BYTES)
        status.weights_done_bytes = min(max(status.weights_done_bytes, 0), status.weights_total_bytes)
        status.ranks = [
            msgspec.structs.replace(
                rank,
                kv_usage=_within(rank.kv_usage, 1.0),
                running=_count(rank.running),
                waiting=_count(rank.waiting),
                kv_blocks=_count(rank.kv_blocks),
            )
            for rank in status.ranks
        ]
        good.append(status)
    return good, bad


def _times(times: LifeTimes) -> LifeTimes:
    """Times of stages in range."""
    return LifeTimes(
        *(
            StageTime(_within(each.last_s, MAX_AGE_S), _within(each.mean_s, MAX_AGE_S), _count(each.count))
            for each in msgspec.structs.astuple(times)
        )
    )


def sound_ends(ends: list[EndedEngine]) -> list[EndedEngine]:
    """The ended engines of a heartbeat with valid figures, at most MAX_ENDS of them."""
    return [
        one
        for one in ends[:MAX_ENDS]
        if _is_valid(one.status)
        and 0.0 <= one.scrape_age_s <= MAX_AGE_S
        and 0.0 <= one.ended_age_s <= MAX_AGE_S
    ]


def _is_valid(status: ReplicaStatus) -> bool:
    """Whether capacity and targets are in range. An engine that is loading may report a KV cache of 0."""
    capacity, targets = status.capacity, status.targets
    steps = (
        capacity.step_base_s,
        capacity.step_per_seq_s,
        capacity.step_per_kv_token_s,
        capacity.step_experts_s,
        capacity.prefill_pair_s,
        capacity.request_s,
        capacity.kv_load_s,
    )
    return (
        all(0.0 <= part <= MAX_STEP_S for part in steps)
        and max(targets.tpot_s, capacity.step_base_s + capacity.step_per_seq_s) >= MIN_STEP_S
        and MIN_RATE <= capacity.prefill_tokens_per_s <= MAX_RATE
        and MIN_RATE <= capacity.accept_per_step <= MAX_TOKENS
        and 0 <= capacity.draft_tokens <= MAX_TOKENS
        and 0.0 <= capacity.expert_share <= 1.0
        and 1 <= capacity.dp_ranks <= MAX_RANKS
        and len(status.ranks) in (0, capacity.dp_ranks)
        and 0 <= capacity.max_num_seqs <= MAX_TOKENS
        and 1 <= capacity.max_batched_tokens <= MAX_TOKENS
        and 0 <= capacity.kv_cache_tokens <= MAX_TOKENS
        and 0 <= capacity.host_kv_tokens <= MAX_TOKENS
        and all(map(_is_valid_target, (targets, targets.priority, targets.batch)))
    )


def _is_valid_target(target: TierTargets | None) -> bool:
    """Whether a tier's target is in range; None = the tier has none of its own."""
    return target is None or (
        MIN_STEP_S <= target.ttft_s <= MAX_STEP_S
        and (target.tpot_s == 0.0 or MIN_STEP_S <= target.tpot_s <= MAX_STEP_S)
    )


def _batch(batch: ClientBatch) -> None:
    for request in batch.requests:
        _request(request)
    for released in batch.released:
        released.input_tokens = _count(released.input_tokens)
        released.cached_input_tokens = _count(released.cached_input_tokens)
        released.output_tokens = _count(released.output_tokens)
    if batch.progress is not None:
        batch.progress.output_tokens = [_count(tokens) for tokens in batch.progress.output_tokens]


def _announce(message: Announce) -> None:
    for held in message.placements:
        held.prompt_tokens, held.hit_tokens = _count(held.prompt_tokens), _count(held.hit_tokens)
        held.output_tokens, held.produced = _count(held.output_tokens), _count(held.produced)
        held.age_s = _within(held.age_s, MAX_AGE_S)
    for queued in message.queued:
        _request(queued.request)
        queued.age_s = _within(queued.age_s, MAX_AGE_S)
    message.counters = [each for each in message.counters if 0.0 < each.service <= MAX_SERVICE]


def _request(request: PlaceRequest) -> None:
    request.prompt_tokens = _count(request.prompt_tokens)
    request.output_tokens = _count(request.output_tokens)
    request.block_tokens = _count(request.block_tokens)


def _count(number: int) -> int:
    if 0 <= number <= MAX_TOKENS:
        return number
    return MAX_TOKENS if number > 0 else 0


def _within(number: float, limit: float) -> float:
    """`number` limited to 0 to `limit`; 0 for NaN."""
    return 0.0 if math.isnan(number) else min(max(number, 0.0), limit)
