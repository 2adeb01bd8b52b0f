"""Measures fairness between tenants: shares against max-min fair shares, and the service gap while two tenants
wait.

Service is counted in weighted tokens as in the fair queue: 1 for an uncached prompt token when its request's
first token comes, 2 for an output token as it comes, divided by the tenant's weight (Sheng et al., OSDI'24).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.pool.contract import Record

INPUT_WEIGHT = 1.0
"""Service units per uncached prompt token."""
OUTPUT_WEIGHT = 2.0
"""Service units per output token."""
STEP_S = 0.5
"""Seconds between the times at which service and backlog are compared."""
MAX_TENANTS = 64
"""Maximum number of tenants compared in pairs: those with the largest demand."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Fairness:
    """The fairness of one run."""

    jain: float
    """Jain's index of each tenant's service over its max-min fair share (0 to 1); 1 = perfectly fair."""
    max_service_gap: float
    """Largest difference in service, in weighted tokens, that arose between two tenants while both waited."""


def fairness(records: Sequence[Record], start: float, end: float) -> Fairness:
    """Return the fairness over [start, end] seconds, in which load was offered; afterwards every request is served."""
    by_tenant: dict[str, list[Record]] = {}
    for record in records:
        by_tenant.setdefault(record.request.tenant, []).append(record)
    if len(by_tenant) < 2 or end <= start:
        return Fairness(1.0, 0.0)
    times = np.arange(start, end + STEP_S, STEP_S)
    tenants = sorted(by_tenant, key=lambda name: -sum(map(demand_of, by_tenant[name])))
    curves = {name: service_curve(by_tenant[name], times) for name in tenants}
    weights = np.array([by_tenant[name][0].request.weight for name in tenants])
    before = np.array([curves[name][0] for name in tenants])
    asked = [sum(demand_of(each) for each in by_tenant[name] if each.request.at <= end) for name in tenants]
    demand = np.array(asked) - before
    served = np.array([curves[name][-1] for name in tenants]) - before
    shares = max_min_shares(np.maximum(demand, served) / weights, weights, float(served.sum()))
    known = shares > 0
    compared = tenants[:MAX_TENANTS]
    gap = max_gap(
        np.stack([curves[name] / by_tenant[name][0].request.weight for name in compared]),
        np.stack([waits(by_tenant[name], times) for name in compared]),
    )
    return Fairness(jain_index((served / weights)[known] / shares[known]), gap)


def demand_of(record: Record) -> float:
    """Return a request's demand in weighted tokens; cached prompt tokens cost nothing."""
    request = record.request
    uncached = request.prompt_tokens - record.cached_tokens
    return INPUT_WEIGHT * uncached + OUTPUT_WEIGHT * request.output_tokens


def jain_index(values: Floats) -> float:
    """Return (sum x)^2 / (n * sum x^2): 1 when all are equal, 1/n when one has everything (Jain, Chiu, Hawe 1984)."""
    squares = float(np.square(values).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares > 0 else 1.0


def max_min_shares(demand: Floats, weights: Floats, total: float) -> Floats:
    """Return each tenant's weighted max-min fair share of `total`, per unit of weight: min(demand, water
    level).

    `demand` is per unit of weight; the level rises until the shares use up `total`.
    """
    shares = np.zeros_like(demand)
    left, unfilled = total, float(weights.sum())
    for tenant in np.argsort(demand):
        level = left / unfilled if unfilled > 0 else 0.0
        shares[tenant] = min(demand[tenant], level)
        left -= shares[tenant] * weights[tenant]
        unfilled -= weights[tenant]
    return shares


def service_curve(records: Sequence[Record], times: Floats) -> Floats:
    """Return the service received by each of `times`: prompts at their first token, outputs evenly until the end."""
    step = float(times[1] - times[0])
    ends = times[-1] + step
    steps = np.zeros(len(times) + 1)
    slopes = np.zeros(len(times) + 1)
    offset = np.zeros(len(times) + 1)
    for record in records:
        if not 0 <= record.first_token_at <= ends or record.finished_at < 0:
            continue
        request = record.request
        first = int(np.searchsorted(times, record.first_token_at))
        last = int(np.searchsorted(times, record.finished_at))
        steps[first] += INPUT_WEIGHT * (request.prompt_tokens - record.cached_tokens)
        output = OUTPUT_WEIGHT * request.output_tokens
        if last == first:
            steps[first] += output
            continue
        rate = output / (record.finished_at - record.first_token_at)
        slopes[first] += rate
        offset[first] -= rate * record.first_token_at
        slopes[last] -= rate
        offset[last] += rate * record.finished_at
    slope, base = np.cumsum(slopes)[:-1], np.cumsum(offset + steps)[:-1]
    curve: Floats = base + slope * times
    return curve


def waits(records: Sequence[Record], times: Floats) -> Flags:
    """Return, for each of `times` and until the next, whether the tenant has a request waiting for its first token."""
    changes = np.zeros(len(times) + 1)
    for record in records:
        until = record.first_token_at if record.first_token_at >= 0 else record.request.at
        first = int(np.searchsorted(times, record.request.at))
        last = int(np.searchsorted(times, until))
        if last > first:
            changes[first] += 1
            changes[last] -= 1
    flags: Flags = np.cumsum(changes)[:-1] > 0
    return flags


def max_gap(service: Floats, backlogged: Flags) -> float:
    """Return the largest |difference in service gained| between two tenants over any time in which both were
    backlogged.

    Rows are tenants, columns times. Within an interval of common backlog the gap of a pair is the spread of the
    difference of their curves.
    """
    tenants, steps = service.shape
    low = np.full((tenants, tenants), np.inf)
    high = np.full((tenants, tenants), -np.inf)
    worst = 0.0
    for step in range(steps):
        difference = service[:, step, None] - service[None, :, step]
        both = backlogged[:, step, None] & backlogged[None, :, step]
        low = np.where(both, np.minimum(low, difference), np.inf)
        high = np.where(both, np.maximum(high, difference), -np.inf)
        spread = np.where(both, high - low, 0.0)
        worst = max(worst, float(spread.max()))
    return worst
