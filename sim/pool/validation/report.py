"""Reports how well a fitted model predicts the other loads, figure by figure."""

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidRequest
from sim.pool.validation.fit import Fitted, fit, predict
from sim.pool.validation.measured import MeasuredLoad, Measurement

Floats = NDArray[np.float64]


class LoadError(msgspec.Struct, frozen=True):
    """One load: measured and predicted figures in seconds."""

    load: str
    rate: float
    requests: int
    fitted: bool
    """Whether the model was fitted to this load; the errors of the other loads are predictions."""
    measured: dict[str, float]
    predicted: dict[str, float]
    ttft_mape: float
    """Mean absolute percentage error of TTFT over the requests (0 = none)."""
    e2e_mape: float

    @property
    def errors(self) -> dict[str, float]:
        """Return predicted over measured, minus one, by figure."""
        return {name: self.predicted[name] / value - 1.0 for name, value in self.measured.items()}


class Validation(msgspec.Struct, frozen=True):
    """The fit on one load and its errors on all loads."""

    engine: str
    machine: str
    date: str
    fit_on: str
    fitted: Fitted
    loads: list[LoadError]

    def median_error(self) -> float:
        """Return the median absolute error over all figures of all loads that were not fitted."""
        errors = [abs(error) for load in self.loads if not load.fitted for error in load.errors.values()]
        return float(np.median(errors)) if errors else 0.0


def validate(
    measurement: Measurement, fit_on: str, *, tick: Callable[[float], None] = lambda loss: None
) -> Validation:
    """Fit on the load named `fit_on` and predict all loads. Raises InvalidRequest when there is no such load."""
    chosen = [load for load in measurement.loads if load.name == fit_on]
    if not chosen:
        known = ", ".join(repr(load.name) for load in measurement.loads)
        raise InvalidRequest(f"no load {fit_on!r} was measured; there are: {known}", param="fit_on")
    fitted = fit(measurement, chosen, tick=tick)
    loads = [_error(measurement, load, fitted, load.name == fit_on) for load in measurement.loads]
    return Validation(measurement.engine, measurement.machine, measurement.date, fit_on, fitted, loads)


def _error(measurement: Measurement, load: MeasuredLoad, fitted: Fitted, is_fitted: bool) -> LoadError:
    first, whole = predict(measurement, load, fitted)
    measured_first = np.array([request.ttft_s for request in load.requests])
    measured_whole = np.array([request.e2e_s for request in load.requests])
    further = np.array([max(1, request.output_tokens - 1) for request in load.requests])
    return LoadError(
        load=load.name,
        rate=load.rate,
        requests=len(load.requests),
        fitted=is_fitted,
        measured=_figures(measured_first, measured_whole, further),
        predicted=_figures(first, whole, further),
        ttft_mape=_mape(first, measured_first),
        e2e_mape=_mape(whole, measured_whole),
    )


def _figures(first: Floats, whole: Floats, further: Floats) -> dict[str, float]:
    per_token = (whole - first) / further
    figures: dict[str, Floats] = {"ttft": first, "tpot": per_token, "e2e": whole}
    return {
        f"{name}_p{percent}": float(np.percentile(values, percent))
        for name, values in figures.items()
        for percent in (50, 90)
    }


def _mape(predicted: Floats, measured: Floats) -> float:
    return float(np.mean(np.abs(predicted / measured - 1.0)))
