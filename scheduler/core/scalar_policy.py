"""The decision of `policy` in plain numbers, for few open replicas.

Under load a slot becomes free on one replica of hundreds. A vector operation over all rows then costs more than the
arithmetic of one, and only that replica's part of the prefix index is read.
"""

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.core.cost import (
    cost_s,
    own_prefill_s,
    sticky_limit_s,
    sticky_threshold,
    tokens_per_block,
    ttft_s,
)
from scheduler.core.pool import Pool
from scheduler.core.rules import band_index
from scheduler.wire import PlaceRequest


class Candidate(NamedTuple):
    """A row that can take the request."""

    row: int
    hits: float
    """Prompt tokens believed to be cached."""
    ttft_s: float
    cost_s: float


def candidates(request: PlaceRequest, pool: Pool, rows: Sequence[int], now: float) -> list[Candidate]:
    """Filter and score `rows`: those that can take the request, with their costs."""
    config, prompt, output = pool.config, request.prompt_tokens, request.output_tokens
    need, held = prompt + output, cached_tokens(request, pool, rows)
    holding, band = sticky_threshold(request, config), band_index(request.tier)
    closed = pool.closed_to(request) if request.narrowed else ()
    able = []
    for row in rows:
        inputs = pool.inputs[row]
        hits = held.get(row, 0.0)
        backlog_s = max(inputs.prefill_done_at - now, inputs.min_backlog_s)
        gate = pool.gates[row][band]
        cold = gate.open_until >= now and gate.room >= need and backlog_s <= config.backlog_cold_s
        warm = hits >= holding and gate.warm_until >= now and backlog_s <= config.backlog_warm_s
        if not (cold or warm) or inputs.kv_room < need - hits or row in closed:
            continue
        uncached = prompt - hits
        prefill = own_prefill_s(float(prompt), uncached, inputs)
        cost = cost_s(float(prompt), float(output), prefill, backlog_s, inputs)
        able.append(Candidate(row, hits, ttft_s(prefill, backlog_s, inputs), cost))
    return able


def cached_tokens(request: PlaceRequest, pool: Pool, rows: Sequence[int]) -> dict[int, float]:
    """Prompt tokens believed to be cached, for those of `rows` that hold any."""
    among = 0
    for row in rows:
        among |= 1 << row
    matches = pool.match(request.blocks, among)
    if not matches:
        return {}
    each, limit = tokens_per_block(request), request.prompt_tokens
    return {row: min(depth * each, limit) for bits, depth in matches for row in rows if bits >> row & 1}


def near_best(request: PlaceRequest, pool: Pool, able: list[Candidate]) -> list[Candidate]:
    """The candidates to choose among, as in `policy.pick`: those that hold the prompt first, then the near-ties in
    cost."""
    if len(able) == 1:
        return able
    best_s = min(option.cost_s for option in able)
    holding = sticky_threshold(request, pool.config)
    warm = [option for option in able if option.hits >= holding]
    if warm:
        limit_s = sticky_limit_s(request, pool.prefill_rate, pool.config)
        soonest = min(option.ttft_s for option in able)
        warm = [
            option
            for option in warm
            if option.cost_s <= best_s + limit_s and option.ttft_s <= soonest + limit_s
        ]
    kept = warm or able
    best_s = min(option.cost_s for option in kept)
    limit = best_s + pool.config.near_tie * abs(best_s)
    return [option for option in kept if option.cost_s <= limit]
