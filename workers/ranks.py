"""Ranks of attention data parallelism: the part that one rank is of its engine.

Each rank has a KV cache, a queue and a batch of its own and computes whole requests; the experts are spread over all of
them. So all ranks take every step together, and it lasts as long as the rank with most to do. An engine is asked for a
rank by the header of a request, and publishes KV events and metrics by rank.
"""

import msgspec

from workers.wire import Capacity, ReplicaStatus

MAX_RANKS = 4096
"""Most ranks of attention data parallelism."""
RANK_HEADER = "X-data-parallel-rank"
"""Request header by which vLLM takes the rank of a request; without it the engine chooses by its own balance."""


def rank_id(replica_id: str, rank: int) -> str:
    """The name of one rank of a replica."""
    return f"{replica_id}/{rank}"


def rank_capacity(capacity: Capacity) -> Capacity:
    """The capacity of one rank, while all others do as much as it does; the engine's own where it has no ranks.

    With n ranks in step, a sequence and a token of KV cache on each of them lengthen a step by n times what one in the
    engine does on average, and the experts see the tokens of all: 1 - (1 - k/E)^n is the share of them that n tokens,
    one of each rank, use.
    """
    ranks = capacity.dp_ranks
    if ranks == 1:
        return capacity
    return msgspec.structs.replace(
        capacity,
        prefill_tokens_per_s=capacity.prefill_tokens_per_s / ranks,
        prefill_pair_s=capacity.prefill_pair_s * ranks,
        step_per_seq_s=capacity.step_per_seq_s * ranks,
        step_per_kv_token_s=capacity.step_per_kv_token_s * ranks,
        expert_share=1.0 - (1.0 - capacity.expert_share) ** ranks,
        dp_ranks=1,
        max_num_seqs=max(1, capacity.max_num_seqs // ranks),
        kv_cache_tokens=capacity.kv_cache_tokens // ranks,
        host_kv_tokens=capacity.host_kv_tokens // ranks,
        kv_load_s=capacity.kv_load_s * ranks,
        gpus=capacity.gpus // ranks,
    )


def target_names(replica_id: str, ranks: int) -> list[str]:
    """The names of what of a replica requests are placed on: its ranks where it has more than one, or itself."""
    return [rank_id(replica_id, number) for number in range(ranks)] if ranks > 1 else [replica_id]


def targets_of(status: ReplicaStatus) -> list[ReplicaStatus]:
    """What of a replica requests are placed on: each rank that it reports as a status of its own, or else itself."""
    if len(status.ranks) <= 1:
        return [status]
    capacity = rank_capacity(msgspec.structs.replace(status.capacity, dp_ranks=len(status.ranks)))
    return [
        msgspec.structs.replace(
            status,
            replica_id=rank_id(status.replica_id, number),
            capacity=capacity,
            running=rank.running,
            waiting=rank.waiting,
            kv_usage=rank.kv_usage,
            kv_blocks=rank.kv_blocks,
            counters=rank.counters,
            ranks=[],
        )
        for number, rank in enumerate(status.ranks)
    ]
