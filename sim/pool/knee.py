"""Finds load 1.0: the highest rate at which the strongest published policy still serves 90 % of requests in time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from core.errors import InvalidRequest
from sim.pool.compare import Cell, Players, Row, Setting
from sim.pool.contract import SimRequest
from sim.pool.registry import STRONGEST
from sim.pool.workloads.registry import workload
from workers.catalog import load_catalog
from workers.step_time import decode_step_s, prefill_s
from workers.wire import Capacity

SERVED = 0.9
"""Share of requests (0 to 1) within both targets at the knee."""
PRECISION = 0.03
"""Relative width of the rate interval at which the search ends."""
SEEDS = (9001, 9002)
"""Seeds of the search; they differ from those of the comparison."""
_SAMPLE_S = 200.0
_STEPS = 14
"""Most rates that are tried to find one that is served beside one that is not."""


@dataclass(frozen=True, slots=True)
class Knee:
    """The capacity of the pool for a workload."""

    rate_rps: float
    slo_met: float
    """Share of requests (0 to 1) served in time at the knee."""
    runs: int
    """Number of rates that were tried."""
    lifetime_s: float = 0.0
    """Mean seconds from arrival to end of an answer at the knee."""


def find(
    setting: Setting,
    *,
    players: Players | None = None,
    on_rate_tried: Callable[[float, float], None] | None = None,
) -> Knee:
    """Bisect for the knee of llm-d's sticky-until-saturated, to 3 % of the rate. No policy sheds requests.

    `on_rate_tried` is called with each rate (requests/s) and the share served in time. Where the setting has no length,
    a run is as long as the rate and the lifetime of answers require, as far as runs before have shown it. Raises
    InvalidRequest where every rate is served, or none.
    """
    shares: dict[float, float] = {}
    lifetimes: dict[float, float] = {}
    players = players or Players(1)

    def served(rate: float) -> bool:
        timed = setting if setting.seconds > 0 else setting.timed(rate, min(lifetimes.values(), default=0.0))
        shares[rate], lifetimes[rate] = _share(replace(timed, shed="zero"), rate, players)
        if on_rate_tried is not None:
            on_rate_tried(rate, shares[rate])
        return shares[rate] >= SERVED

    knee = highest_rate(first_guess(setting), served)
    return Knee(knee, shares[knee], len(shares), lifetimes[knee])


def first_guess(setting: Setting) -> float:
    """Return the requests per second that the pool could serve with empty caches and full batches."""
    pool = setting.pool(load_catalog())
    context = min(spec.capacity.max_model_len for spec in pool)
    source = workload(setting.workload, models=_plain(setting.models), context=context)
    sample = list(source.requests(rate=5.0, seconds=_SAMPLE_S, seed=SEEDS[0]))
    if not sample:
        raise InvalidRequest(f"{source.name} has no requests")
    capacity = pool[0].capacity
    return len(pool) * len(sample) / alone_s(capacity, sample, capacity.max_num_seqs)


def alone_s(capacity: Capacity, sample: Sequence[SimRequest], batch: int) -> float:
    """Return the seconds that one engine with an empty cache and `batch` sequences at once needs for `sample`."""
    token_s = decode_step_s(capacity, batch, 0) / batch / max(1.0, capacity.accept_per_step)
    return sum(
        prefill_s(capacity, request.prompt_tokens, request.prompt_tokens) + request.output_tokens * token_s
        for request in sample
    )


def _share(setting: Setting, rate: float, players: Players) -> tuple[float, float]:
    """Return the share of requests in time, and the mean lifetime of answers in seconds."""
    cells = [Cell(setting, (STRONGEST,), rate, rate, seed) for seed in SEEDS]
    rows: list[Row] = [row for _, batch in players.play(cells) for row in batch]
    share, lifetime_s = (
        sum(float(row[name]) for row in rows) / len(rows) for name in ("slo_met", "lifetime_s")
    )
    return share, lifetime_s


def highest_rate(guess: float, served: Callable[[float], bool], *, factor: float = 2.0) -> float:
    """Return the highest rate that is served, to PRECISION; from `guess` on, rates are tried by `factor`.

    Raises InvalidRequest where every rate is served, or none.
    """
    low, high = _bracket(guess, served, factor)
    while high / low > 1.0 + PRECISION:
        middle = (low * high) ** 0.5
        if served(middle):
            low = middle
        else:
            high = middle
    return low


def _bracket(guess: float, served: Callable[[float], bool], factor: float) -> tuple[float, float]:
    """Return a rate that is served and a rate `factor` times as high that is not."""
    rate, ever = guess, served(guess)
    for _ in range(_STEPS):
        further = rate * factor if ever else rate / factor
        if served(further) != ever:
            return (rate, further) if ever else (further, rate)
        rate = further
    raise InvalidRequest(
        "no knee: the pool serves this workload at every rate"
        if ever
        else "the pool serves this workload at no rate"
    )


def _plain(models: Sequence[str]) -> list[str]:
    return [name.partition(":")[0] for name in models]
