"""Where prefill apart from decode pays: ENGINES engines that do both, and the same engines divided in two.

A prefill engine computes a prompt and its first token, which is thrown away, as vLLM's proxy does. The KV cache then
moves over the links of the engine's GPUs to a decode engine, which computes the last prompt token again, and answers.
What the decode engine holds of the prompt does not move.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

from sim.engine.step_model.interface import StepConfig
from sim.engine.step_model.job import Job
from sim.pool.calls import job_of
from sim.pool.contract import SimRequest
from sim.pool.tuning.chunks import CHUNK_S, SIZES, WORKLOADS
from sim.pool.tuning.knee import LOAD, SEED, trial_of
from sim.pool.tuning.play import Arrangement, Played, Sent, Together, Watched, pick
from workers.catalog import CatalogModel, EngineProfile, HostKind
from workers.kv_links import NETWORK, NVLINK, token_s

ENGINES = 4
REQUESTS = 500
SECONDS = 45.0
"""Least size of a run: several engines see more requests in less time."""
SEEDS = tuple(range(SEED, SEED + 5))
"""Seeds of the requests; all divisions get the same ones."""


class SplitFigures(msgspec.Struct, frozen=True):
    """One division on one workload: means over the seeds. Times in seconds."""

    profile: str
    """MODEL:PROFILE."""
    workload: str
    prefill: int
    """Number of prefill engines; 0 = all engines do both."""
    decode: int
    link: str
    """What the KV cache moves over."""
    move_us: float
    """Microseconds to move the KV cache of one token."""
    knees_rps: tuple[float, ...]
    """Highest rate in requests/s, of all engines together, with nine of ten requests in time, by seed."""
    rate_rps: float
    """Rate of the further figures."""
    ttft_p50_s: float
    ttft_p90_s: float
    tpot_p50_s: float
    tpot_p90_s: float
    pause_p90_s: float

    @property
    def knee_rps(self) -> float:
        """The mean of the knees."""
        return fmean(self.knees_rps)


class Apart:
    """Engines that compute prompts, and engines that compute answers."""

    def __init__(
        self, prefill: StepConfig, decode: StepConfig, counts: tuple[int, int], move_s: float
    ) -> None:
        """`counts`: numbers of prefill and decode engines. `move_s`: seconds to move the KV cache of one token."""
        self._prefill = [Watched(prefill, number) for number in range(counts[0])]
        self._decode = [Watched(decode, counts[0] + number) for number in range(counts[1])]
        self._move_s = move_s
        self._link_free_at = dict.fromkeys(self._prefill, 0.0)
        self.engines: Sequence[Watched] = [*self._prefill, *self._decode]

    def arrive(self, request: SimRequest) -> Sent:
        """Send a new request to a prefill engine, for one token."""
        prompt = Job(request.key, request.prompt_tokens, 1, request.blocks, request.block_tokens)
        return Sent(request.at, pick(self._prefill, request), prompt)

    def follow(self, request: SimRequest, job: Job, engine: Watched) -> Sent | None:
        """Move a computed prompt to a decode engine."""
        if engine not in self._link_free_at:
            return None
        chosen = pick(self._decode, request)
        moved = request.prompt_tokens - chosen.cached(request)
        begins = max(job.finished_at, self._link_free_at[engine])
        self._link_free_at[engine] = at = begins + moved * self._move_s
        answer = job_of(request)
        answer.loaded_tokens = request.prompt_tokens
        return Sent(at, chosen, answer)


def study(
    model: CatalogModel,
    profile: EngineProfile,
    host: HostKind,
    *,
    workloads: Sequence[str] = WORKLOADS,
    requests: int = REQUESTS,
    seeds: Sequence[int] = SEEDS,
    tick: Callable[[str], None] = lambda what: None,
) -> list[SplitFigures]:
    """Return the figures of every division on every workload; none where the bytes of a token are not known."""
    if "kv_token_bytes" not in profile.figures:
        return []
    together = profile.instances >= ENGINES and host.gpu in NVLINK
    link, speed = ("NVLink", NVLINK[host.gpu]) if together else ("network", NETWORK)
    move_s = token_s(profile.figures["kv_token_bytes"].value, profile.gpus, speed)
    usual = StepConfig(profile.capacity, profile.block_size, CHUNK_S)
    # No answer runs on a prefill engine that a chunk could interrupt; a decode engine computes no chunks.
    largest = msgspec.structs.replace(profile.capacity, max_batched_tokens=SIZES[-1])
    prefill = StepConfig(largest, profile.block_size, CHUNK_S)
    decode = StepConfig(profile.capacity, profile.block_size)

    def maker(count: int) -> Callable[[], Arrangement]:
        if not count:
            return lambda: Together(usual, ENGINES)
        return lambda: Apart(prefill, decode, (count, ENGINES - count), move_s)

    rows = []
    for name in workloads:
        runs: list[list[tuple[float, float, Played]]] = [[] for _ in range(ENGINES)]
        for seed in seeds:
            trial = trial_of(name, model, profile, requests=requests, seconds=SECONDS, seed=seed)
            near = rate = 0.0
            for count in range(ENGINES):
                tick(f"{model.name}:{profile.name} on {name}, {count} of {ENGINES} apart, seed {seed}")
                knee = trial.knee(maker(count), near)
                near, rate = near or knee, rate or LOAD * knee
                runs[count].append((knee, rate, trial.run(maker(count), rate)))
        rows += [
            _figures(f"{model.name}:{profile.name}", name, count, (link, 1e6 * move_s), runs[count])
            for count in range(ENGINES)
        ]
    return rows


def _figures(
    profile: str,
    workload: str,
    count: int,
    link: tuple[str, float],
    runs: Sequence[tuple[float, float, Played]],
) -> SplitFigures:
    played = [each for _, _, each in runs]
    return SplitFigures(
        profile=profile,
        workload=workload,
        prefill=count,
        decode=ENGINES - count,
        link=link[0],
        move_us=link[1],
        knees_rps=tuple(knee for knee, _, _ in runs),
        rate_rps=fmean(rate for _, rate, _ in runs),
        ttft_p50_s=fmean(each.ttft_p50_s for each in played),
        ttft_p90_s=fmean(each.ttft_p90_s for each in played),
        tpot_p50_s=fmean(each.tpot_p50_s for each in played),
        tpot_p90_s=fmean(each.tpot_p90_s for each in played),
        pause_p90_s=fmean(each.pause_p90_s for each in played),
    )
