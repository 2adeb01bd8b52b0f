"""Whatever a peer says, every figure that goes on to the scheduler state is finite and in range.

msgpack carries NaN, infinities and 64-bit integers, and engines print NaN in their metrics. One such figure in a cost
or an age would end the decision loop, which is everybody's.
"""

import math

from scheduler.messages import Announce, FromClient, Progress
from scheduler.wire import PlaceRequest, Released
from workers.wire import ReplicaStatus

MAX_TOKENS = 1 << 30
"""Of one request, or of one replica's cache: far above what any model reads."""
MAX_AGE_S = 86_400.0
MAX_SERVICE = 1e15
"""A counter beyond this would not feel single tokens any more."""
MAX_STEP_S = 3_600.0
MIN_STEP_S = 1e-6
"""Promised times are divided by: no engine keeps shorter ones."""
MAX_RATE = 1e9
MIN_RATE = 1e-3
"""Prompt tokens a second, and tokens a step, are divided by too: no engine is slower."""


def clamp_client_message(message: FromClient) -> None:
    """Put a client's figures in range, in place."""
    match message:
        case PlaceRequest():
            _request(message)
        case Released():
            message.input_tokens = _count(message.input_tokens)
            message.cached_input_tokens = _count(message.cached_input_tokens)
            message.output_tokens = _count(message.output_tokens)
        case Progress():
            message.output_tokens = _count(message.output_tokens)
        case Announce():
            _announce(message)


def valid_replicas(statuses: list[ReplicaStatus]) -> tuple[list[ReplicaStatus], list[str]]:
    """The replicas of a heartbeat with figures to reckon with, and the names of those that have none.

    What an engine measures is put in range; a capacity or a target that is no number cannot be guessed.
    """
    good, bad = [], []
    for status in statuses:
        if not _is_valid(status):
            bad.append(status.replica_id)
            continue
        status.kv_usage = _within(status.kv_usage, 1.0)
        status.running, status.waiting = _count(status.running), _count(status.waiting)
        status.kv_blocks, status.block_size = _count(status.kv_blocks), _count(status.block_size)
        good.append(status)
    return good, bad


def _is_valid(status: ReplicaStatus) -> bool:
    """Whether every figure can be reckoned with. An engine that loads may not know the room of its KV cache (0)."""
    capacity, targets = status.capacity, status.targets
    steps = (capacity.step_base_s, capacity.step_per_seq_s, capacity.step_per_kv_token_s)
    return (
        all(0.0 <= part <= MAX_STEP_S for part in steps)
        and max(targets.tpot_s, capacity.step_base_s + capacity.step_per_seq_s) >= MIN_STEP_S
        and MIN_RATE <= capacity.prefill_tokens_per_s <= MAX_RATE
        and MIN_RATE <= capacity.accept_per_step <= MAX_TOKENS
        and 0 <= capacity.max_num_seqs <= MAX_TOKENS
        and 0 <= capacity.kv_cache_tokens <= MAX_TOKENS
        and MIN_STEP_S <= targets.ttft_s <= MAX_STEP_S
        and (targets.tpot_s == 0.0 or MIN_STEP_S <= targets.tpot_s <= MAX_STEP_S)
    )


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
    return min(max(number, 0), MAX_TOKENS)


def _within(number: float, limit: float) -> float:
    """`number` from 0 to `most`; 0 when it is none."""
    return 0.0 if math.isnan(number) else min(max(number, 0.0), limit)
