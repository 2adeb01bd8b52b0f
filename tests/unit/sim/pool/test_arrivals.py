"""Arrival processes have the mean and the variation that they are asked for."""

import numpy as np
import pytest

from sim.pool.workloads.arrivals import Arrivals, Bursts, Day, Steady, poisson
from sim.pool.workloads.servegen import Window, _renewal


@pytest.mark.parametrize("arrivals", [Steady(), Bursts(5, 25, 0.1), Day()], ids=["steady", "bursts", "day"])
def test_the_mean_over_the_run_is_what_was_asked_for(arrivals: Arrivals) -> None:
    rng = np.random.default_rng(5)
    for begin in (0.0, -500.0):
        at, groups = poisson(arrivals.steps(rng, begin, 1000.0), 20.0, rng)
        inside = at[at >= 0]
        assert len(inside) == pytest.approx(20_000, rel=0.03)
        assert len(groups) == len(at)
        assert np.all(np.diff(at) >= 0)
        assert at[0] >= begin
        assert at[-1] <= 1000.0


def test_bursts_are_numbered_and_denser() -> None:
    rng = np.random.default_rng(5)
    steps = Bursts(5, 25, 0.1).steps(rng, 0.0, 3000.0)
    lengths = np.diff(steps.edges)
    on = steps.groups >= 0
    assert lengths[on].sum() / lengths.sum() == pytest.approx(5 / 30, abs=0.06)
    at, groups = poisson(steps, 10.0, rng)
    dense = (groups >= 0).sum() / lengths[on].sum()
    sparse = (groups < 0).sum() / lengths[~on].sum()
    assert dense / sparse == pytest.approx(10.0, rel=0.2)
    assert set(groups[groups >= 0]) <= set(steps.groups[on])
    assert len(at) == pytest.approx(30_000, rel=0.03)


@pytest.mark.parametrize(
    ("weibull", "shape", "variation"), [(False, 0.25, 2.0), (False, 4.0, 0.5), (True, 1.0, 1.0)]
)
def test_renewal_processes_have_their_rate_and_variation(
    weibull: bool, shape: float, variation: float
) -> None:
    """Gamma gaps of shape k have a coefficient of variation of 1/sqrt(k); Weibull ones of shape 1 are exponential."""
    rng = np.random.default_rng(7)
    at = _renewal(Window(0.0, 1.0, weibull, shape), 5.0, 8_000.0, rng)
    gaps = np.diff(at)
    assert len(at) == pytest.approx(40_000, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)
    assert at[-1] < 8_000.0
