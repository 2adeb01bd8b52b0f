"""Attention data parallelism against tensor parallelism, and ranks as targets against the engine's own balance.

Each arrangement serves the same requests on the same hosts under our scheduler, as in the comparison of policies: late
metrics, estimated lengths, stated speeds that are off.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from core.errors import InvalidRequest
from sim.pool import knee
from sim.pool.compare import Cell, Players, Row, Setting
from sim.pool.registry import OURS, WHOLE

MODEL = "deepseek-v3.2"
"""The model whose profiles are compared."""
RATES: Mapping[str, Sequence[float]] = {"mixed": (6.0, 10.0, 14.0), "mooncake-conversation": (0.8, 1.6, 2.4)}
"""Requests per second and host by workload: many tenants with chats and agents, and conversations with long prompts."""
LIFETIME_S = 10.0
"""Seconds from arrival to end of an answer by which warm-up and length of a run are chosen."""


class Arrangement(msgspec.Struct, frozen=True):
    """One way to run a host's GPUs."""

    profile: str
    policy: str
    about: str


ARRANGEMENTS = (
    Arrangement("tp8", OURS, "TP8"),
    Arrangement("dp8", WHOLE, "8 ranks, the engine chooses"),
    Arrangement("dp8", OURS, "8 ranks, each a target"),
)
"""In the order of the page."""


class RankFigures(msgspec.Struct, frozen=True):
    """One arrangement under one workload at one rate; means over the seeds."""

    workload: str
    rate_rps: float
    """Of all hosts, in requests per second."""
    arrangement: str
    in_time: float
    """Share of requests, 0 to 1."""
    hit_rate: float
    """Share of prompt tokens found in a cache, 0 to 1."""
    ttft_p50_s: float
    ttft_p90_s: float
    tpot_p50_s: float


def study(
    hosts: int,
    *,
    workloads: Sequence[str] = tuple(RATES),
    seeds: Sequence[int] = knee.SEEDS,
    workers: int = 1,
    tick: Callable[[str], None],
) -> list[RankFigures]:
    """Play every arrangement under every workload on `hosts` hosts; `tick` is told what has ended.

    Raises InvalidRequest for a workload that is not in RATES.
    """
    unknown = [name for name in workloads if name not in RATES]
    if unknown:
        raise InvalidRequest(
            f"no rates are known for {unknown[0]!r}; workloads: {', '.join(RATES)}", param="workload"
        )
    cells = {
        Cell(_setting(name, each, hosts, hosts * rate), (each.policy,), rate, hosts * rate, seed): each
        for name in workloads
        for rate in RATES[name]
        for each in ARRANGEMENTS
        for seed in seeds
    }
    found: dict[tuple[str, float, str], list[Row]] = {}
    with Players(workers) as players:
        for cell, rows in players.play(list(cells)):
            about = cells[cell].about
            tick(f"{cell.setting.workload}, {cell.rate:g}/s, {about}")
            found.setdefault((cell.setting.workload, cell.rate, about), []).extend(rows)
    order = dict.fromkeys((cell.setting.workload, cell.rate, each.about) for cell, each in cells.items())
    return [_figures(*key, found[key]) for key in order]


def _setting(workload: str, arrangement: Arrangement, hosts: int, rate: float) -> Setting:
    setting = Setting(workload, (f"{MODEL}:{arrangement.profile}",), hosts, 0.0)
    return setting.timed(rate, LIFETIME_S)


def _figures(workload: str, rate: float, arrangement: str, rows: Sequence[Row]) -> RankFigures:
    def mean(name: str) -> float:
        return sum(float(row[name]) for row in rows) / len(rows)

    names = ("slo_met", "hit_rate", "ttft_p50_s", "ttft_p90_s", "tpot_p50_s")
    return RankFigures(workload, rate, arrangement, *(mean(name) for name in names))
