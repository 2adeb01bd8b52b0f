"""Runs policies side by side: every policy gets the same requests, at several loads, with several seeds.

The unit of work is a *cell*: one load with one seed, all policies. Cells run in processes of their own; each
yields one row per policy. A cell contains everything that it needs, so it gives the same rows in any process.
"""

import math
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import active_children, get_context
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from core.errors import InvalidRequest
from sim.pool.blocks import blocks_of
from sim.pool.bound import served_at_most
from sim.pool.network import Network, stream
from sim.pool.pool import ReplicaSpec, pool_of
from sim.pool.registry import OURS, Variant, policy
from sim.pool.run import simulate
from sim.pool.settings import RunConfig
from sim.pool.summary import Summary, service_levels, summarise
from sim.pool.workloads.registry import workload
from workers.catalog import Catalog, load_catalog

Row = dict[str, Any]
"""One run's figures, as they are written to the JSON file."""
SHEDDING = ("zero", "equal")
"""Modes of the published policies: no refusals, or the same share as Penstock's."""
MIN_WARMUP_S = 20.0
"""Shortest warm-up in seconds."""
WARMUP_SHARE = 0.2
"""Share of a run's seconds (0 to 1) that is warm-up, where the lifetime of answers is not known."""
WARMUP_LIFETIMES = 2.0
"""Lifetimes of answers that are warm-up."""
WARMUP_ARRIVALS = 200.0
"""Least arrivals of the warm-up at load 1: policies that learn have learnt from some."""
MEASURED_LIFETIMES = 10.0
"""Least lifetimes of answers that are measured."""
MEASURED_ARRIVALS = 800.0
"""Least arrivals that are measured at load 1."""
MAX_MEASURED_S = 600.0
"""Longest time for MEASURED_ARRIVALS, in seconds."""
MIN_SECONDS = 45.0
"""Shortest run in seconds."""
MAX_BLOCKS = 16
"""Most blocks into which a run is divided."""
RATE_ERROR = 0.2
"""Standard deviation of the logarithm of stated over true prefill rate."""
STEP_ERROR = 0.1
"""The same for the seconds of a step."""
_EXACT = 6
"""Number of significant digits kept of a figure."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings that all cells of a comparison share."""

    workload: str
    """Name or file of the workload."""
    models: tuple[str, ...]
    """Models, each as NAME or NAME:PROFILE."""
    hosts: int
    """Number of hosts for each model."""
    seconds: float
    """Seconds of simulated arrivals, including the warm-up; afterwards the run drains."""
    prefix: str = "mirrored"
    shed: str = "zero"
    api_processes: int = 3
    lifetime_s: float = 0.0
    """Mean seconds from arrival to end of an answer at load 1; 0 = not known."""
    warm_s: float = 0.0
    """Seconds of warm-up; 0 = WARMUP_SHARE of the run."""

    @property
    def warmup_s(self) -> float:
        """Seconds of warm-up: earlier arrivals fill caches and are not counted."""
        return min(self.seconds / 2, self.warm_s or max(MIN_WARMUP_S, WARMUP_SHARE * self.seconds))

    @property
    def cooldown_s(self) -> float:
        """Seconds at the end whose arrivals are not counted: they keep up the load on those before them."""
        return min(self.lifetime_s, (self.seconds - self.warmup_s) / 4)

    @property
    def block_s(self) -> float:
        """Seconds of a block, the unit that intervals are computed from: answers of one overlap with few others'."""
        measured_s = self.seconds - self.warmup_s - self.cooldown_s
        return max(self.lifetime_s, measured_s / MAX_BLOCKS)

    def timed(self, rate: float, lifetime_s: float) -> "Setting":
        """Return the setting with the length of a run for this rate and lifetime of answers."""
        warm_s = max(
            MIN_WARMUP_S, WARMUP_LIFETIMES * lifetime_s, min(WARMUP_ARRIVALS / rate, MAX_MEASURED_S / 4)
        )
        measured_s = max(MEASURED_LIFETIMES * lifetime_s, min(MEASURED_ARRIVALS / rate, MAX_MEASURED_S))
        seconds = max(MIN_SECONDS, round(warm_s + measured_s + lifetime_s))
        return replace(
            self, seconds=float(seconds), lifetime_s=round(lifetime_s, 2), warm_s=float(round(warm_s))
        )

    def pool(self, catalog: Catalog) -> list[ReplicaSpec]:
        """Return the replicas of the comparison."""
        return pool_of(catalog, self.models, self.hosts)


@dataclass(frozen=True, slots=True)
class Cell:
    """One load with one seed."""

    setting: Setting
    policies: tuple[str, ...]
    load: float
    rate: float
    """Arrivals per second at `load`."""
    seed: int


def cells(
    setting: Setting, policies: Sequence[str], rates: Sequence[tuple[float, float]], seeds: Iterable[int]
) -> list[Cell]:
    """Return a cell for every (load, rate) and seed, ordered by seed, so that an interrupted comparison is
    still balanced.
    """
    return [Cell(setting, tuple(policies), load, rate, seed) for seed in seeds for load, rate in rates]


def play(cell: Cell) -> list[Row]:
    """Run every policy of a cell over the same requests and return their rows.

    Penstock's runs first, because the others shed the share that it shed. Raises InvalidRequest for a workload,
    model or policy that does not exist.
    """
    setting = cell.setting
    catalog = load_catalog()
    pool = [misstated(spec, cell.seed) for spec in setting.pool(catalog)]
    levels = service_levels(pool)
    context = min(spec.capacity.max_model_len for spec in pool)
    source = workload(setting.workload, models=_names(setting.models), context=context)
    requests = list(source.requests(rate=cell.rate, seconds=setting.seconds, seed=cell.seed))
    if not any(request.at >= setting.warmup_s for request in requests):
        raise InvalidRequest(f"{source.name} has no request after the warm-up at {cell.rate:.3g} requests/s")
    end = max(request.at for request in requests) - setting.cooldown_s
    served = served_at_most([each for each in requests if each.at <= end], pool, warmup_s=setting.warmup_s)
    measured_s = end - setting.warmup_s
    equal = setting.shed == "equal"
    variant = Variant(setting.prefix, admission=equal, deadline_s=_patience_s(pool) if equal else 600.0)
    shed_rate = 0.0
    rows = []
    for name in sorted(_with_ours(cell.policies) if equal else cell.policies, key=lambda each: each != OURS):
        entry = policy(name, variant, shed_rate=shed_rate if equal else 0.0)
        config = RunConfig(
            seed=cell.seed,
            api_processes=setting.api_processes,
            network=entry.network(Network()),
            warmup_s=setting.warmup_s,
            cooldown_s=setting.cooldown_s,
        )
        result = simulate(entry.make, requests, pool, config, workload=source.name, load=cell.load)
        summary = summarise(result, levels)
        if name == OURS:
            shed_rate = summary.shed_rate
        if name in cell.policies:
            row = _row(cell, name, summary, pool, served / max(measured_s, 1e-9))
            rows.append({**row, "blocks": blocks_of(result, levels, setting.block_s)})
    return rows


def misstated(spec: ReplicaSpec, seed: int) -> ReplicaSpec:
    """Return the replica with stated figures of its speed that are off, as a catalog's are: all policies of a seed read
    the same. Its true speed is unchanged.
    """
    error, true = stream(seed, f"figures of {spec.model}"), spec.capacity
    rate, step = math.exp(error.gauss(0.0, RATE_ERROR)), math.exp(error.gauss(0.0, STEP_ERROR))
    stated = msgspec.structs.replace(
        true,
        prefill_tokens_per_s=true.prefill_tokens_per_s * rate,
        step_base_s=true.step_base_s * step,
        step_per_seq_s=true.step_per_seq_s * step,
    )
    return replace(spec, stated=stated)


class Players:
    """A context manager with worker processes that run cells. They fork at once, so create it before starting
    any thread.
    """

    def __init__(self, workers: int) -> None:
        """Start `workers` processes; 1 = cells run in this process."""
        self._executor: ProcessPoolExecutor | None = None
        self._processes: list[BaseProcess] = []
        if workers > 1:
            others = active_children()
            self._executor = ProcessPoolExecutor(workers, get_context("fork"), _ignore_interrupts)
            self._executor.submit(int).result()
            self._processes = [each for each in active_children() if each not in others]

    def __enter__(self) -> "Players":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:  # cells under way may take minutes: stop them
            for process in self._processes:
                process.terminate()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def play(self, todo: Sequence[Cell]) -> Iterator[tuple[Cell, list[Row]]]:
        """Run all cells, and yield each with its rows as it ends.

        An error in a cell is raised and ends the comparison, so the results have no gaps.
        """
        if self._executor is None:
            for cell in todo:
                yield cell, play(cell)
            return
        futures: dict[Future[list[Row]], Cell] = {self._executor.submit(play, cell): cell for cell in todo}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _ignore_interrupts() -> None:
    """Ignore SIGINT in workers: the parent process receives it too and ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def key_of(row: Row) -> tuple[float, int, str]:
    """Return the key of a row within a comparison: load, seed and policy."""
    return float(row["load"]), int(row["seed"]), str(row["policy"])


def missing(todo: Sequence[Cell], rows: Iterable[Row]) -> list[Cell]:
    """Return the cells for which the row of some policy is missing."""
    have = {key_of(row) for row in rows}
    return [cell for cell in todo if any((cell.load, cell.seed, name) not in have for name in cell.policies)]


def _with_ours(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names) if OURS in names else (OURS, *names)


def _names(models: Sequence[str]) -> list[str]:
    return [name.partition(":")[0] for name in models]


def _patience_s(pool: Sequence[ReplicaSpec]) -> float:
    """Return the queue timeout in seconds where refusals are possible: the longest target for the first token."""
    return max(spec.targets.ttft_s for spec in pool)


def _row(cell: Cell, name: str, summary: Summary, pool: Sequence[ReplicaSpec], bound_rps: float) -> Row:
    setting, targets = cell.setting, pool[0].targets
    figures = asdict(summary)
    kept = (
        "goodput_rps", "offered_rps", "slo_met", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s",
        "tpot_p99_s", "hit_rate", "shed_rate", "jain", "max_service_gap", "gpu_hours", "usd_per_mtok",
        "mean_waiting", "preemptions", "requests", "lifetime_s",
    )  # fmt: skip
    return {
        "policy": name,
        "workload": summary.workload,
        "load": cell.load,
        "seed": cell.seed,
        **{figure: _rounded(figures[figure]) for figure in kept},
        "bound_rps": _rounded(bound_rps),
        "rate_rps": _rounded(cell.rate),
        "slo_ttft_s": targets.ttft_s,
        "slo_tpot_s": _rounded(targets.tpot_s),
        "model": ",".join(setting.models),
        "hosts": setting.hosts,
        "replicas": len(pool),
        "seconds": setting.seconds,
        "warmup_s": setting.warmup_s,
        "prefix": setting.prefix,
        "shed": setting.shed,
    }


def _rounded(value: float) -> float | int | None:
    """Return the value with _EXACT significant digits; None (JSON null) for a value that is not finite."""
    if isinstance(value, int):
        return value
    return float(f"{value:.{_EXACT}g}") if math.isfinite(value) else None
