"""`make bench-pools` on a short day: what acting on the plan costs, against the autoscaler's simulation."""

from pathlib import Path

import pytest

from bench.pools.play import days_of
from bench.pools.publish import publish
from core.errors import InvalidRequest

CONDITIONS = {"date": "2026-11-28T12:00:00+00:00", "commit": "abc", "machine": "a machine", "seed": 3}


def test_a_day_on_created_hosts_costs_what_the_simulation_says(tmp_path: Path) -> None:
    days = days_of("deepseek-v3.2", ["diurnal"], day_s=7200.0, peak_rps=6.0, seed=3)
    [day] = days.days
    assert day.seen.created >= 3
    assert day.seen.destroyed >= 1
    assert day.seen.interrupted == 0
    assert day.acted.requests == day.requests == len(day.seen.first_tokens)
    assert day.seen.bill_cents == day.seen.cost_cents > 0
    assert day.gpu_hours == pytest.approx(day.simulated_gpu_hours, rel=0.1)
    assert day.acted.attainment > day.simulated.attainment - 0.02
    paths = publish(days, CONDITIONS, tmp_path)
    assert [path.suffix for path in paths] == [".json", ".svg", ".md"]
    assert "| diurnal |" in paths[2].read_text()


def test_a_model_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="nothing"):
        days_of("nothing", ["diurnal"], day_s=3600.0, peak_rps=1.0, seed=1)
