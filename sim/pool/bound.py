"""How many requests any policy at all could have served within both targets: an upper bound, for the gap.

**The relaxed world.** All replicas of a model are one server that works M times as fast on whatever it likes, knows the
future, interrupts at no cost and works on one request with all of itself. Every prefix block is cached for ever from
the moment at which a request that brings it arrives, wherever. Requests that are not served in time cost nothing.
Whatever a real policy serves in time, this server serves in time too, because:

1. *Prefill.* A request computes at least its prompt minus what any earlier arrival could have left behind (and at least
   one token: engines recompute the last). Step time contains u/R + q*u*(n - u/2) for the last u of n tokens, so the
   replicas together spend at least that many seconds on it, between its arrival and its TTFT target.
2. *Decode.* A step with B good sequences lasts at least base(B), and the step times that a request sees add up to at
   most its TPOT target times its tokens. For any l >= 0, with t_s the steps and N their sequences in sum:
   sum t_s >= sum base(B_s)*(1 + l*B_s) - l*tau*N >= N * (min_B base(B)*(1 + l*B)/B - l*tau), tau = TPOT target times
   tokens a step. So each good sequence's step takes at least that many seconds of some replica, and gamma*prompt more.
   (l = 0: base(max)/max. Larger l: batches that keep the target are smaller, so alpha is shared by fewer.)
3. Work that must be done between an arrival and a deadline by a server of speed M: the most requests on time is the
   problem 1|r_j|sum U_j. Deadlines are moved out to the latest deadline of any earlier arrival, which only helps and
   puts both in one order; then the greedy of Kise, Ibaraki and Mine (Operations Research 26, 1978) is optimal, and
   interruptions gain nothing.

The bound is the smaller of two such counts: prefill alone against TTFT deadlines, and all work against the end of the
answer. Noise and speculation enter by their means: the bound holds for runs without noise, and for noisy ones up to the
noise of a sum over the whole run. What it ignores (each replica's own cache, KV room, batches shared with prefill) is
why no policy reaches it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.core.rules import BANDS, band_index
from sim.engine.step_model.cost import StepCost
from sim.pool.contract import SimRequest
from sim.pool.pool import ReplicaSpec
from workers.step_time import own_prefill_s, prefill_s
from workers.wire import TierTargets

_PRICES = tuple(2.0**power for power in range(-12, 7))
"""Values of l that are tried, per sequence of the largest batch."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task with a release time and a deadline, in seconds."""

    release: float
    seconds: float
    """Seconds of work of the pooled server."""
    deadline: float


def served_at_most(
    requests: Iterable[SimRequest], pool: Sequence[ReplicaSpec], *, warmup_s: float = 0.0
) -> int:
    """Return an upper bound on the requests arriving from `warmup_s` on that any policy could serve within both
    targets.

    `requests` are in order of arrival and include those of the warm-up.
    """
    models: dict[str, list[ReplicaSpec]] = {}
    for replica in pool:
        models.setdefault(replica.model, []).append(replica)
    servers = {model: _Server(replicas) for model, replicas in models.items()}
    prefill: dict[str, list[Task]] = {model: [] for model in servers}
    whole: dict[str, list[Task]] = {model: [] for model in servers}
    for request, uncached in _uncached(requests):
        server = servers.get(request.model)
        if server is None or request.at < warmup_s:
            continue
        first_by, all_by = server.deadlines(request)
        prefill_s = server.prefill_s(uncached, request.prompt_tokens)
        prefill[request.model].append(Task(request.at, prefill_s, first_by))
        whole[request.model].append(Task(request.at, prefill_s + server.decode_s(request), all_by))
    return sum(min(on_time(prefill[model]), on_time(whole[model])) for model in servers)


def on_time(tasks: Sequence[Task]) -> int:
    """Return the most tasks that one server can finish in time; deadlines must be in the same order as
    releases.

    `tasks` are in order of release.
    """
    count = 0
    latest = -math.inf
    block: list[tuple[float, float, float]] = []
    """Accepted tasks of the current busy period: release, start and duration in seconds."""
    free_at = -math.inf
    for task in tasks:
        latest = max(latest, task.deadline)
        if task.release >= free_at:
            block.clear()
        start = max(free_at, task.release)
        block.append((task.release, start, task.seconds))
        free_at = start + task.seconds
        count += 1
        if free_at > latest:
            free_at = _drop_best(block, free_at)
            count -= 1
    return count


def decode_step_s(cost: StepCost, max_batch: int, tau: float) -> float:
    """Return the least replica seconds per good sequence and step, where step times may be `tau` on average
    (point 2).
    """
    shares = [(cost.base(batch) / batch, cost.base(batch)) for batch in range(1, max_batch + 1)]
    best = min(share for share, _ in shares)
    for price in _PRICES:
        price /= max_batch
        best = max(best, min(share + price * base for share, base in shares) - price * tau)
    return best


class _Server:
    """All replicas of a model as one server; where they differ, each figure is that of the best."""

    def __init__(self, replicas: Sequence[ReplicaSpec]) -> None:
        speed = len(replicas)
        capacities = [replica.capacity for replica in replicas]
        self._speed = speed
        self._capacities = capacities
        self._gamma = min(each.step_per_kv_token_s for each in capacities) / speed
        self._per_step = max(1.0, *(each.accept_per_step for each in capacities))
        self._targets = {
            tier: TierTargets(
                max(replica.targets.of(tier).ttft_s for replica in replicas),
                max(replica.targets.of(tier).tpot_s for replica in replicas),
            )
            for tier in BANDS
        }
        tau = max(each.tpot_s for each in self._targets.values()) * self._per_step
        self._step_s = (
            min(decode_step_s(StepCost(each), each.max_num_seqs, tau) for each in capacities) / speed
        )

    def prefill_s(self, uncached: int, prompt: int) -> float:
        """Return the least seconds of the pooled server for the last `uncached` of `prompt` tokens."""
        return min(prefill_s(each, uncached, prompt) for each in self._capacities) / self._speed

    def deadlines(self, request: SimRequest) -> tuple[float, float]:
        """Return when the request's first and last token are due, in seconds."""
        promised = self._targets[BANDS[band_index(request.tier)]]
        own_s = max(own_prefill_s(each, request.prompt_tokens) for each in self._capacities)
        first_by = request.at + promised.ttft_s + own_s
        return first_by, first_by + (request.output_tokens - 1) * promised.tpot_s

    def decode_s(self, request: SimRequest) -> float:
        """Return the least seconds of the pooled server for the request's decode steps."""
        steps = (request.output_tokens - 1) / self._per_step
        return steps * (self._step_s + self._gamma * request.prompt_tokens)


def _uncached(requests: Iterable[SimRequest]) -> Iterable[tuple[SimRequest, int]]:
    """Yield each request with the prompt tokens that no earlier arrival can have left in any cache."""
    seen: set[int] = set()
    for request in requests:
        found = 0
        for block in request.blocks:
            if block not in seen:
                break
            found += 1
        seen.update(request.blocks)
        seen.update(request.output_blocks)
        cached = min(found * request.block_tokens, request.prompt_tokens - 1)
        yield request, request.prompt_tokens - cached


def _drop_best(block: list[tuple[float, float, float]], free_at: float) -> float:
    """Drop the task without which the busy period ends earliest, and return that end in seconds."""
    slack = math.inf
    best_gain, best = -1.0, 0
    for place in range(len(block) - 1, -1, -1):
        release, start, seconds = block[place]
        gain = min(seconds, slack)
        if gain > best_gain:
            best_gain, best = gain, place
        slack = min(slack, start - release)
    del block[best]
    end = block[best - 1][1] + block[best - 1][2] if best else -math.inf
    for place in range(best, len(block)):
        release, _, seconds = block[place]
        start = max(end, release)
        block[place] = (release, start, seconds)
        end = start + seconds
    return end
