"""What few requests show: hosts that are created for a model of which none serves."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.core.autoscale.autoscaler import Autoscaler
from scheduler.core.autoscale.state import CreatingHost, DemandObservation, Observation
from tests.unit.scheduler.autoscale.test_hosts import DEAR, elastic


def created(
    arrivals: list[int], prompt: float, *, most: int = 64, held: bool = False, step_s: float = 2.0
) -> list[int]:
    """Hosts that were created by each look, with so many requests of `prompt` tokens before it, on which no host
    begins to serve. `held`: whether all requests wait from then on."""
    model = elastic(0, most, 1e9, kinds=(DEAR,))
    scaler, hosts, waiting = Autoscaler({"m": model}), list[CreatingHost](), 0
    scaler.observe(Observation(0.0, [], [], [DemandObservation("m")]))
    counts = []
    for look, count in enumerate(arrivals, start=1):
        waiting += count if held else 0
        came = float(count > 0)
        row = DemandObservation(
            "m",
            count,
            came * prompt,
            came * prompt,
            came * prompt * prompt,
            came * 400.0,
            came * 320_000.0,
            waiting,
            waiting * prompt,
        )
        scaler.observe(Observation(look * step_s, [], [], [row], list(hosts)))
        for creation in scaler.plan().create:
            hosts += [
                CreatingHost(f"host-{len(hosts) + place}", creation.kind, "m", 0.0, 64.0)
                for place in range(creation.count)
            ]
        counts.append(len(hosts))
    return counts


@settings(deadline=None)
@given(st.floats(1.0, 1e6), st.integers(1, 64), st.booleans(), st.floats(0.1, 5.0))
@example(9_000.0, 8, False, 2.0)
@example(1e6, 64, True, 0.1)
def test_one_request_creates_one_host(prompt: float, most: int, held: bool, step_s: float) -> None:
    counts = created([1] + [0] * 30, prompt, most=most, held=held, step_s=step_s)
    assert counts == [1] * 31


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.floats(1.0, 1e6), st.booleans())
def test_no_more_hosts_are_created_than_requests_have_come(
    arrivals: list[int], prompt: float, held: bool
) -> None:
    counts = created([*arrivals, 0, 0], prompt, held=held)
    assert all(count <= sum(arrivals[: look + 1]) for look, count in enumerate(counts))
    assert counts[-1] >= min(1, sum(arrivals))


def test_requests_that_one_replica_carries_create_no_second_host() -> None:
    assert created([1] * 10, 4_000.0)[-1] == 1
    assert created([20, 20, 20], 500.0)[-1] == 1


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("each", [[100, 100, 100], [300], [60] * 5])
def test_hundreds_of_requests_in_seconds_create_all_hosts_that_are_allowed(
    each: list[int], held: bool
) -> None:
    assert created(each, 9_000.0, most=8, held=held)[-1] == 8


def test_prompts_that_wait_create_what_clears_them_beside_what_the_rate_needs() -> None:
    arrivals = [20, 20, 20]
    assert created(arrivals, 200_000.0, held=True)[-1] > created(arrivals, 200_000.0)[-1]
