"""The step model against published figures and against a measured engine."""

import gzip
import random
import statistics
from pathlib import Path

import msgspec
import pytest

from core.errors import InvalidRequest
from sim.pool.validation.fit import Fitted, fit, predict
from sim.pool.validation.measured import CARRIED, MeasuredLoad, MeasuredRequest, Measurement, read_measurement
from sim.pool.validation.published import check_all
from sim.pool.validation.report import validate
from workers.catalog import load_catalog

TRUTH = Fitted(30_000.0, 0.006, 0.0007, 2e-8, 0.004)


def synthetic(truth: Fitted, rate: float, seed: int) -> Measurement:
    """A measurement whose times come from the step model itself."""
    rng = random.Random(seed)
    at, requests = 0.0, []
    for _ in range(150):
        at += rng.expovariate(rate)
        requests.append(MeasuredRequest(at, rng.randint(50, 1500), rng.randint(20, 150), 0, 1.0, 2.0))
    load = MeasuredLoad("made", rate, requests)
    blank = Measurement("model", "m", "none", "2026-01-01", 64, 2048, 32, 800, 2048, [load])
    first, whole = predict(blank, load, truth)
    timed = [
        msgspec.structs.replace(request, ttft_s=float(ttft), e2e_s=float(e2e))
        for request, ttft, e2e in zip(requests, first, whole, strict=True)
    ]
    return msgspec.structs.replace(blank, loads=[MeasuredLoad("made", rate, timed)])


def test_a_fit_on_one_load_predicts_another() -> None:
    fitted = fit(measured := synthetic(TRUTH, 6.0, 1), measured.loads)
    other = synthetic(TRUTH, 12.0, 2)
    _, whole = predict(other, other.loads[0], fitted)
    off = [
        abs(mine / request.e2e_s - 1.0) for mine, request in zip(whole, other.loads[0].requests, strict=True)
    ]
    assert statistics.median(off) < 0.15


def test_shared_prefixes_are_computed_once() -> None:
    requests = [
        MeasuredRequest(float(n), 1100, 8, 0, 1.0, 2.0, prefix=0, prefix_tokens=1024) for n in range(3)
    ]
    load = MeasuredLoad("shared", 1.0, requests)
    measurement = Measurement("model", "m", "none", "2026-01-01", 64, 2048, 32, 800, 2048, [load])
    first, _ = predict(measurement, load, TRUTH)
    assert first[1] < first[0] / 2
    assert first[1] == pytest.approx(first[2])


def test_the_carried_measurement_is_predicted_from_one_of_its_loads() -> None:
    validation = validate(read_measurement(CARRIED), "near the knee")
    assert [load.fitted for load in validation.loads].count(True) == 1
    assert validation.median_error() < 0.3
    assert all(load.requests > 50 for load in validation.loads)


def test_figures_that_the_catalog_was_computed_from_come_out() -> None:
    for checked in check_all(load_catalog()):
        if checked.anchor.calibrated:
            assert abs(checked.error) < 0.15, checked.anchor.name


def test_an_unknown_load_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no load 'nope' was measured; there are: 'light'"):
        validate(read_measurement(CARRIED), "nope")
    broken = tmp_path / "broken.json.gz"
    broken.write_bytes(gzip.compress(b'{"engine": 5}'))
    with pytest.raises(InvalidRequest, match="is not a measurement"):
        read_measurement(broken)
    with pytest.raises(InvalidRequest, match="cannot read"):
        read_measurement(tmp_path / "absent.json")
