"""Present backlog, running answers, and bursts of arrivals."""

import math

from scheduler.core.autoscale.capacity import Load
from scheduler.core.autoscale.meter import DemandMeter
from workers.step_time import decode_step_s, prefill_s
from workers.wire import Capacity, Targets

BURST_Z = 4.5
"""Standard deviations by which the burst rate must exceed the planned rate to count as a burst."""


def backlog_at(load: Load, backlog_tokens: float, working: int, after_s: float, capacity: Capacity) -> float:
    """Uncached prompt tokens that are queued `after_s` seconds from now, with `working` replicas at work."""
    growth = load.rate * load.uncached - working * capacity.prefill_tokens_per_s
    return max(0.0, backlog_tokens + growth * after_s)


def needed_for_backlog(
    load: Load, backlog_tokens: float, working: int, wake_s: float, capacity: Capacity, targets: Targets
) -> int:
    """Replicas that clear the backlog within the target for the first token, once woken ones serve.

    N >= (P(wake)/T + lambda*u) / R, with P(wake) the backlog at that time; 0 when there is none. `working` includes
    pending replicas, otherwise each observation would wake the same number again; and those that the rate needs, which
    this observation wakes. With them only what already waits can make a backlog: a rate that was measured from a few
    requests is not taken for minutes of arrivals.
    """
    backlog = backlog_at(load, backlog_tokens, working, wake_s, capacity)
    if backlog <= 0.0:
        return 0
    demand = backlog / targets.ttft_s + load.rate * load.uncached
    return math.ceil(demand / capacity.prefill_tokens_per_s)


def needed_for_running(load: Load, running: int, capacity: Capacity, targets: Targets) -> int:
    """Replicas that the running sequences need for their time per token; 0 when no number suffices.

    The smallest N with step(B/N) <= accept * TPOT * (1 - phi), with the observed B and phi = lambda*s/N, s being the
    seconds of a request's prefill; found by doubling and bisection, as the step grows with its batch. Reacts to answers
    that are longer than before.
    """
    allowed_s = capacity.accept_per_step * targets.tpot_s
    if running <= 0 or capacity.step_base_s >= allowed_s:
        return 0
    tokens = load.prompt + load.output / 2.0
    prefill = load.rate * prefill_s(capacity, load.uncached, load.prompt)

    def keeps(count: int) -> bool:
        batch = running / count
        return decode_step_s(capacity, batch, batch * tokens) <= allowed_s * (1.0 - prefill / count)

    low, high = 0, 1
    while not keeps(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def burst_rate(meter: DemandMeter, planned: float) -> float:
    """The rate of a burst that significantly exceeds the `planned` rate, in requests per second; 0 without one."""
    return meter.burst if meter.burst - BURST_Z * meter.burst_sigma > planned else 0.0
