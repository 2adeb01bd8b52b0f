"""Chooses the tokens of a step (`--max-num-batched-tokens`) for a profile.

A prompt is computed in chunks of at most this size, beside one token group of every running answer. Large chunks make
answers pause for as long as one takes; small ones pay more often for what a step costs whatever it computes. The rule:

    of the sizes whose knee is at least 1 - TIE of the best one's, on the workload where it is lowest,
    the one whose answers pause least, at the same rate on all sizes.

The knee is the highest rate with nine of ten requests in time, and in time is only what never pauses for more than
half a second (`play.PAUSE_S`). A chunk costs CHUNK_S beside alpha and its tokens. The
fits of whole sweeps cannot see this figure, because their prompts fit into one chunk: there it is a part of h.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from core.errors import InvalidRequest
from sim.engine.step_model.interface import StepConfig
from sim.pool.tuning.knee import LOAD, trial_of
from sim.pool.tuning.play import Together
from workers.catalog import CatalogModel, EngineProfile
from workers.step_time import drafts_of
from workers.wire import USUAL_BATCHED_TOKENS, Capacity

SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)
WORKLOADS = ("mooncake-conversation", "mixed")
"""Long prompts with little reuse; and chat, agents, documents and batch work with much."""
CHUNK_S = 0.030
"""Seconds of a chunk beside alpha and its tokens. Operation tables (AIConfigurator 0.12.0) of MiniMax-M2.5 on 4xB300:
1k tokens take 52 ms and 8k 115 ms, so 43 ms are fixed, of which alpha and the experts are 12."""
TIE = 0.05
"""Share of the best size's knee that is no difference: the search ends at 3 %."""


class SizeFigures(msgspec.Struct, frozen=True):
    """What one size does on one workload."""

    profile: str
    """MODEL:PROFILE."""
    workload: str
    size: int
    """Tokens of a step."""
    knee_rps: float
    """Highest rate in requests/s with nine of ten requests in time."""
    rate_rps: float
    """Rate of the further figures, which are in seconds."""
    pause_p90_s: float
    ttft_p90_s: float
    tpot_p50_s: float


def sizes_of(capacity: Capacity) -> list[int]:
    """Return the sizes of which a full batch of answers leaves at least three quarters to prompts."""
    answers = capacity.max_num_seqs // capacity.dp_ranks * (1 + drafts_of(capacity))
    sizes = [size for size in SIZES if size >= 4 * answers]
    if not sizes:
        raise InvalidRequest(
            f"a batch of {capacity.max_num_seqs} sequences has {answers} tokens in a step of a rank; the largest step "
            f"that is tried has {SIZES[-1]}",
            param="model",
        )
    return sizes


def study(
    model: CatalogModel,
    profile: EngineProfile,
    *,
    workloads: Sequence[str] = WORKLOADS,
    chunk_s: float = CHUNK_S,
    tick: Callable[[str], None] = lambda what: None,
) -> list[SizeFigures]:
    """Return the figures of every size on every workload. `tick` is called with what is played next."""
    rows: list[SizeFigures] = []
    for name in workloads:
        trial = trial_of(name, model, profile)

        def arrangement(size: int) -> Together:
            capacity = msgspec.structs.replace(profile.capacity, max_batched_tokens=size)
            return Together(StepConfig(capacity, profile.block_size, chunk_s))

        tick(f"{model.name}:{profile.name} on {name}")
        usual = near = trial.knee(partial(arrangement, USUAL_BATCHED_TOKENS))
        for size in reversed(sizes_of(profile.capacity)):
            if size != USUAL_BATCHED_TOKENS:
                near = trial.knee(partial(arrangement, size), near)
            said = trial.run(partial(arrangement, size), LOAD * usual)
            rows.append(
                SizeFigures(
                    f"{model.name}:{profile.name}", name, size,
                    usual if size == USUAL_BATCHED_TOKENS else near, LOAD * usual,
                    said.pause_p90_s, said.ttft_p90_s, said.tpot_p50_s,
                )
            )  # fmt: skip
    return rows


def chosen(rows: Iterable[SizeFigures]) -> int:
    """Return the size that the rule chooses from the rows of one profile."""
    by_size: dict[int, list[SizeFigures]] = {}
    best: dict[str, float] = {}
    for row in rows:
        by_size.setdefault(row.size, []).append(row)
        best[row.workload] = max(best.get(row.workload, 0.0), row.knee_rps)
    share = {size: min(row.knee_rps / best[row.workload] for row in same) for size, same in by_size.items()}
    enough = [size for size in share if share[size] >= (1.0 - TIE) * max(share.values())]
    return min(enough, key=lambda size: (max(row.pause_p90_s for row in by_size[size]), size))
