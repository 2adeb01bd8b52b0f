"""The fast loop: what is waiting now, and a load that outran the forecast."""

import math

from scheduler.core.autoscale.capacity import Load
from workers.wire import Capacity, Targets

SURGE_Z = 3.0
"""The quick rate counts as a surge when it exceeds the forecast by so many of its own standard deviations."""
BURST_Z = 4.5
"""The same for the burst rate, which has more chances to be high by chance."""


def backlog_at(load: Load, backlog_tokens: float, serving: int, after_s: float, capacity: Capacity) -> float:
    """Uncached prompt tokens that still wait `after_s` from now, if arrivals go on and `serving` replicas work."""
    growth = load.rate * load.uncached - serving * capacity.prefill_tokens_per_s
    return max(0.0, backlog_tokens + growth * after_s)


def needed_for_backlog(
    load: Load, backlog_tokens: float, serving: int, wake_s: float, capacity: Capacity, targets: Targets
) -> int:
    """Replicas that clear the backlog within the target for the first token, once those to be woken serve.

    N >= (P(wake)/T + lambda*u) / R, with P(wake) the backlog that remains when they come: a queue that is gone by
    then needs nobody. `serving` counts pending replicas too, or every look would wake the same number again.
    """
    backlog = backlog_at(load, backlog_tokens, serving, wake_s, capacity)
    if backlog <= 0.0:
        return 0
    demand = backlog / targets.ttft_s + load.rate * load.uncached
    return math.ceil(demand / capacity.prefill_tokens_per_s)


def needed_for_running(load: Load, running: int, capacity: Capacity, targets: Targets) -> int:
    """Replicas among which what runs now would have its tokens in time; 0 where no number would do.

    (alpha + (beta + gamma*kv) B/N) / (accept (1 - phi)) <= TPOT with B sequences counted instead of predicted and
    phi = lambda*u/(N R), which is linear in 1/N. Sees answers that turn out longer than those before.
    """
    room = capacity.accept_per_step * targets.tpot_s - capacity.step_base_s
    if room <= 0.0 or running <= 0:
        return 0
    tokens = load.prompt + load.output / 2.0
    steps = (capacity.step_per_seq_s + capacity.step_per_kv_token_s * tokens) * running
    prefill = load.rate * load.uncached / capacity.prefill_tokens_per_s
    return math.ceil((steps + capacity.accept_per_step * targets.tpot_s * prefill) / room)


def surge_rate(quick: float, quick_sigma: float, forecast_upper: float, z: float = SURGE_Z) -> float:
    """The rate to plan for when arrivals have outrun the forecast beyond chance; 0 when they have not."""
    return quick if quick - z * quick_sigma > forecast_upper else 0.0
