"""How many replicas a load needs: the smallest number at which every target is met.

Notation of the step-time model (workers/step_time.py): R prefill tokens per second; a step takes alpha + W(B) + beta*B
+ gamma*KV seconds, W being the time of the experts, and yields `accept` tokens per sequence. Prefill and decode share a
replica: while a share phi of its time goes to prefill, decoding proceeds at 1 - phi (chunked prefill, one step at a
time).
"""

import math
from itertools import pairwise
from statistics import NormalDist

import msgspec

from workers.step_time import decode_step_s, own_prefill_s, prefill_s
from workers.wire import Capacity, Targets

MAX_UTILISATION = 0.7
"""phi: largest share of a replica's time that may go to prefill."""
MAX_KV = 0.8
"""Largest share of the KV cache that may be in use."""
MAX_MISSES = 0.01
"""Largest share of requests that may miss a target by chance: the 99th percentile meets the targets."""
MIN_RATE = 1e-9
"""Requests per second below which the rate counts as zero: one in thirty years. A decaying average never reaches
zero."""
EXPERT_ROUNDS = 8
"""Rounds of the iteration for the time of the experts; what is left is below a percent of it."""
MIN_UTILISATION = 1e-15
"""Share of a replica's time below which prefill counts as none, close to the resolution of a float."""

_CLASSES = (0.0, 0.01, 0.04, 0.1, 0.2, 0.4, 0.7, 1.0)
_LENGTHS = tuple((NormalDist().inv_cdf((low + high) / 2.0), high - low) for low, high in pairwise(_CLASSES))
"""Classes of answer lengths as (standard normal quantile, share), finest for short answers, which miss targets
most."""
_ONE_LENGTH = ((0.0, 1.0),)


class Load(msgspec.Struct, frozen=True):
    """The demand for a model."""

    rate: float
    """lambda: requests per second."""
    prompt: float
    """Mean prompt tokens."""
    uncached: float
    """u: mean uncached prompt tokens."""
    output: float
    """o: mean output tokens."""
    cv2: float = 1.0
    """Squared coefficient of variation of the uncached tokens."""
    output_cv2: float = 0.0
    """Squared coefficient of variation of the output tokens. Short answers have the least time to make up for a
    prefill between their steps."""


class Margins(msgspec.Struct, frozen=True):
    """Limits of utilisation."""

    utilisation: float = MAX_UTILISATION
    kv: float = MAX_KV
    misses: float = MAX_MISSES


DEFAULT_MARGINS = Margins()
"""Margins of the live autoscaler."""


class Prediction(msgspec.Struct, frozen=True):
    """Predicted performance of N replicas under a load."""

    utilisation: float
    """phi = lambda*s / N, with s the seconds of a request's prefill."""
    tpot_s: float
    """Mean seconds per output token; infinite when decoding cannot keep up."""
    ttft_s: float
    """Mean seconds to the first token."""
    late: float
    """Share of requests whose wait for prefill alone exceeds the target."""
    slow: float
    """Share of requests whose time per token misses the target because of prefills between their steps."""
    batch: float
    """B: sequences per replica."""
    kv: float
    """Share of the KV cache in use."""


def predict(load: Load, replicas: int, capacity: Capacity, targets: Targets) -> Prediction:
    """Performance of `replicas` (at least 1) evenly loaded replicas. A rate below MIN_RATE counts as zero."""
    if load.rate < MIN_RATE:
        load = msgspec.structs.replace(load, rate=0.0)
    engine_s = prefill_s(capacity, load.uncached, load.prompt)
    service = capacity.dp_ranks * engine_s
    phi = load.rate * engine_s / replicas
    if phi >= 1.0:
        return Prediction(phi, math.inf, math.inf, 1.0, 1.0, math.inf, math.inf)
    ttft = capacity.request_s + service * (1.0 + phi * (1.0 + load.cv2) / (2.0 * (1.0 - phi)))
    tpot = _tpot(load, replicas, capacity, phi, ttft)
    batch = load.rate * (ttft + load.output * tpot) / replicas
    kv = batch * (load.prompt + load.output / 2.0) / capacity.kv_cache_tokens
    late = wait_exceeds(targets.ttft_s, replicas * capacity.dp_ranks, phi, service, load.cv2)
    per_token = _step_s(load, capacity, batch) / capacity.accept_per_step
    slow = decode_exceeds(load, replicas, phi, engine_s, targets.tpot_s, per_token)
    return Prediction(phi, tpot, ttft, late, slow, batch, kv)


def _step_s(load: Load, capacity: Capacity, batch: float) -> float:
    """Seconds of a step with `batch` sequences of the load and no prefill."""
    return decode_step_s(capacity, batch, batch * (load.prompt + load.output / 2.0))


def _tpot(load: Load, replicas: int, capacity: Capacity, phi: float, ttft: float) -> float:
    """TPOT = (alpha + W(B) + (beta + gamma*kv) B) / (accept (1 - phi)) in seconds, with B = lambda*E2E/N.

    E2E = TTFT + o*TPOT makes the equation linear in TPOT where W is constant. W grows with B, so the iteration starts
    from all experts and falls towards the solution: each of its values is an upper bound. Infinite when the batch
    would grow without bound.
    """
    per_sequence = capacity.step_per_seq_s + capacity.step_per_kv_token_s * (load.prompt + load.output / 2.0)
    share = per_sequence * load.rate / replicas
    room = capacity.accept_per_step * (1.0 - phi) - share * load.output
    if room <= 0.0:
        return math.inf
    tpot = (capacity.step_base_s + capacity.step_experts_s + share * ttft) / room
    if capacity.step_experts_s:
        for _ in range(EXPERT_ROUNDS):
            batch = load.rate * (ttft + load.output * tpot) / replicas
            fixed = decode_step_s(capacity, batch, 0) - capacity.step_per_seq_s * batch
            tpot = (fixed + share * ttft) / room
    return tpot


def wait_exceeds(limit_s: float, replicas: int, phi: float, service_s: float, cv2: float) -> float:
    """Probability that a request waits longer than `limit_s` for prefill, when the router finds an idle replica.

    Erlang's C gives the probability of waiting; the tail is exponential with the Allen-Cunneen correction for general
    service times: P(W > t) = C(N, N*phi) exp(-2 N (1-phi) t / (s (1 + cv^2))).
    """
    if phi >= 1.0:
        return 1.0
    if phi <= 0.0 or service_s <= 0.0:
        return 0.0
    tail = 2.0 * replicas * (1.0 - phi) * limit_s / (service_s * (1.0 + cv2))
    return erlang_c(replicas, replicas * phi) * math.exp(-tail)


def decode_exceeds(
    load: Load, replicas: int, phi: float, service_s: float, limit_s: float, per_token_s: float
) -> float:
    """Probability that an answer's mean time per token exceeds `limit_s`, when its own steps take `per_token_s` of
    it.

    An answer of o tokens has o*limit seconds, of which o*(limit - per_token) may go to prefills between its steps.
    Their work is compound Poisson with mean phi*o*limit. It is zero with probability exp(-phi*o*limit/s); its tail is
    taken as a lognormal's with the same mean and variance. The variance for random arrivals, phi*s*(1 +
    cv^2)*o*limit, holds for one replica. A router that sends prompts to the shortest queue smooths the arrivals at
    each of N replicas: phi*s*(1/N + cv^2)*(1 + 1/N)/2*o*limit, fitted to the day pool under constant loads (accuracy:
    docs/results/autoscaler.md). Answer lengths are lognormal, in seven classes.
    """
    if not per_token_s < limit_s:  # also where nothing is known of either
        return 1.0
    if phi < MIN_UTILISATION or service_s <= 0.0:
        return 0.0
    share = 1.0 / replicas
    spread = service_s * (share + load.cv2) * (1.0 + share) / 2.0
    room = (limit_s - per_token_s) / (phi * limit_s)
    sigma2 = math.log(1.0 + load.output_cv2)
    missed = 0.0
    for z, weight in _LENGTHS if sigma2 > 0.0 else _ONE_LENGTH:
        work_s = phi * limit_s * max(1.0, load.output * math.exp(math.sqrt(sigma2) * z - sigma2 / 2.0))
        some = -math.expm1(-work_s / service_s)
        missed += weight * min(some, _lognormal_tail(room, spread / work_s))
    return missed


def _lognormal_tail(times: float, cv2: float) -> float:
    """Probability that a lognormal with squared coefficient of variation `cv2` exceeds `times` its mean.

    It never decreases with more variation: beyond the maximum, where the values concentrate at zero, the maximum is
    returned. It is at least one half when the mean itself does not fit.
    """
    sigma2 = math.log(1.0 + cv2)
    above = math.log(times)
    if sigma2 <= 0.0:
        return 0.0 if above > 0.0 else 1.0
    if above > 0.0:
        sigma2 = min(sigma2, 2.0 * above)
    tail = 0.5 * math.erfc((above + sigma2 / 2.0) / math.sqrt(2.0 * sigma2))
    return tail if above > 0.0 else max(tail, 0.5)


def erlang_c(servers: int, offered: float) -> float:
    """Erlang's C: the probability that all of `servers` are busy at an offered load in Erlangs (below `servers`).

    Computed by the recursion of Erlang's B, which stays within 0 to 1 for any number of servers.
    """
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    return servers * blocked / (servers - offered * (1.0 - blocked))


def shortfall(
    load: Load, replicas: int, capacity: Capacity, targets: Targets, margins: Margins = DEFAULT_MARGINS
) -> str:
    """Why `replicas` are too few for `load`, in words; empty when every margin is kept.

    The target for the first token is on top of the request's own uncached prefill (workers.wire.Targets).
    """
    if load.rate < MIN_RATE:
        return ""
    if replicas < 1:
        return "no replica"
    seen = predict(load, replicas, capacity, targets)
    ttft_limit = targets.ttft_s + own_prefill_s(capacity, load.prompt)
    if seen.utilisation > margins.utilisation:
        return f"phi {seen.utilisation:.2f}, limit {margins.utilisation:.2f}"
    if seen.tpot_s > targets.tpot_s:
        return f"{1000 * seen.tpot_s:.0f} ms a token, target {1000 * targets.tpot_s:.0f}"
    if seen.ttft_s > ttft_limit:
        return f"TTFT {seen.ttft_s:.2f} s, target {ttft_limit:.2f}"
    if seen.kv > margins.kv:
        return f"KV cache {100 * seen.kv:.0f} % full, limit {100 * margins.kv:.0f} %"
    if seen.batch > capacity.max_num_seqs:
        return f"{seen.batch:.0f} sequences, limit {capacity.max_num_seqs}"
    if seen.late + seen.slow > margins.misses:
        kind = (
            f"wait over {targets.ttft_s:.1f} s"
            if seen.late > seen.slow
            else "get slower tokens than promised"
        )
        return f"{100 * (seen.late + seen.slow):.1f} % {kind}, limit {100 * margins.misses:.1f} %"
    return ""


def needed(
    load: Load,
    capacity: Capacity,
    targets: Targets,
    margins: Margins = DEFAULT_MARGINS,
    *,
    at_most: int = 4096,
) -> int:
    """The smallest number of replicas at which every margin is kept; `at_most` when none is.

    Every law is monotone in the number of replicas, so the number is found by doubling and bisection.
    """
    if load.rate < MIN_RATE:
        return 0
    low, high = 0, 1
    while shortfall(load, high, capacity, targets, margins):
        if high >= at_most:
            return at_most
        low, high = high, min(2 * high, at_most)
    while high - low > 1:
        middle = (low + high) // 2
        if shortfall(load, middle, capacity, targets, margins):
            low = middle
        else:
            high = middle
    return high
