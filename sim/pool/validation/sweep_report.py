"""How far the step model is from whole sweeps: point by point, at concurrencies and lengths kept out of the fit."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Literal

import msgspec

from sim.pool.validation.replay import Replayed, replay
from sim.pool.validation.sweep_fit import FULL_CACHE_S, Split, roomy, split
from sim.pool.validation.sweeps import Point, Shape, Sweep
from workers.catalog import Catalog
from workers.wire import Capacity

FEW_USERS = 64
"""Users below which the time to first token is judged: beyond, published means are those of the opening burst."""
TPOT_LIMIT = 0.10
TTFT_LIMIT = 0.35
"""Largest medians of absolute errors (0 = none) at points that were not fitted."""
NEAR = 0.03
"""Largest absolute error of TPOT at fitted points for which those beyond the fit are explained by lying there."""


class PointError(msgspec.Struct, frozen=True):
    """One point: measured and replayed seconds and, where it was measured, throughput."""

    shape: str
    concurrency: int
    use: Literal["fitted", "held out", "full cache"]
    ttft_s: float
    replayed_ttft_s: float
    tpot_s: float
    replayed_tpot_s: float
    output_tok_s: float | None
    replayed_output_tok_s: float
    preemptions: int

    @property
    def ttft_error(self) -> float:
        """Replayed over measured time to first token, minus one."""
        return self.replayed_ttft_s / self.ttft_s - 1.0

    @property
    def tpot_error(self) -> float:
        """Replayed over measured time per token, minus one."""
        return self.replayed_tpot_s / self.tpot_s - 1.0

    @property
    def throughput_error(self) -> float | None:
        """Replayed over measured throughput, minus one; None = it was not measured."""
        return None if self.output_tok_s is None else self.replayed_output_tok_s / self.output_tok_s - 1.0


class SweepError(msgspec.Struct, frozen=True):
    """One sweep under one profile's figures."""

    sweep: str
    title: str
    profiles: list[str]
    source: str
    gpu: str
    gpus: int
    points: list[PointError]
    worst: PointError
    """The point with the largest error of TPOT, of those whose cache was not full."""
    cause: str
    """Why the worst point is off where the figures show it; else what is known of it."""

    def tpot_median(self, *uses: str) -> float | None:
        """Median absolute error of TPOT over the points of these uses; None = there are none."""
        return _median(abs(point.tpot_error) for point in self.points if point.use in uses)

    def ttft_median(self, *uses: str) -> float | None:
        """The same of TTFT, below FEW_USERS users."""
        return _median(
            abs(point.ttft_error)
            for point in self.points
            if point.use in uses and point.concurrency < FEW_USERS
        )

    def throughput_median(self) -> float | None:
        """Median absolute error of throughput over the points where it was measured; None = nowhere."""
        return _median(abs(error) for point in self.points if (error := point.throughput_error) is not None)


def check_sweep(
    sweep: Sweep,
    capacity: Capacity,
    profiles: Sequence[str] = (),
    *,
    block_size: int = 64,
    held_out_shape: Shape | None = None,
    seed: int = 0,
) -> SweepError:
    """Replay every point of `sweep` on an engine of `capacity`, without speculation, and compare."""
    parts, room = split(sweep, held_out_shape), roomy(capacity, sweep)
    points = []
    for point in sweep.points:
        said = replay(room, point, shortest=sweep.shortest, seed=seed, block_size=block_size)
        points.append(_error(point, said, parts))
    worst = max((one for one in points if one.use != "full cache"), key=lambda one: abs(one.tpot_error))
    cause = cause_of(worst, points)
    return SweepError(
        sweep.name, sweep.title, list(profiles), sweep.source, sweep.gpu, sweep.gpus, points, worst, cause
    )


def check_catalog(
    catalog: Catalog, sweeps: dict[str, Sweep], *, tick: Callable[[str], None] = lambda name: None
) -> list[SweepError]:
    """Check every sweep that a profile of the catalog names; `tick` is called with each one's title before it."""
    found: dict[str, list[tuple[str, Capacity, int]]] = {}
    for model in catalog.models.values():
        for profile in model.profiles.values():
            if profile.sweep in sweeps:
                named = f"{model.name}:{profile.name}"
                found.setdefault(profile.sweep, []).append((named, profile.plain, profile.block_size))
    results = []
    for name, users in found.items():
        tick(sweeps[name].title)
        _, capacity, block_size = users[0]
        results.append(
            check_sweep(sweeps[name], capacity, [user for user, _, _ in users], block_size=block_size)
        )
    return results


def unvalidated(catalog: Catalog, sweeps: dict[str, Sweep]) -> list[str]:
    """The profiles (MODEL:PROFILE) whose figures no known sweep validates."""
    return [
        f"{model.name}:{profile.name}"
        for model in catalog.models.values()
        for profile in model.profiles.values()
        if profile.sweep not in sweeps
    ]


def overall(errors: Sequence[SweepError]) -> tuple[float, float]:
    """Medians of the absolute errors of TPOT, and of TTFT below FEW_USERS users, over all points kept out of fits."""
    kept_out = [point for each in errors for point in each.points if point.use == "held out"]
    tpot = _median(abs(point.tpot_error) for point in kept_out)
    ttft = _median(abs(point.ttft_error) for point in kept_out if point.concurrency < FEW_USERS)
    return tpot or 0.0, ttft or 0.0


def cause_of(worst: PointError, points: Sequence[PointError]) -> str:
    """Why a point is off, by rules over its sweep.

    That a point lies beyond the fit is a cause only where the fit is near up to there. Where no rule holds, what has
    been looked at is said.
    """
    same = [point for point in points if point.shape == worst.shape]
    return (
        _faulty(worst, same)
        or _beyond(worst, points)
        or _traded(worst, points)
        or _bent(worst, [point for point in same if point.use != "full cache"])
        or "not found; excluded: preemptions, times that fall with more users, users or lengths beyond the fit, "
        "lengths traded for others, a bend between the neighbours"
    )


def _faulty(worst: PointError, same: Sequence[PointError]) -> str:
    """What is wrong with the replay or the measurement itself; empty where nothing is."""
    if worst.preemptions:
        return f"the replayed cache is full: {worst.preemptions} preemptions"
    slower = [p for p in same if p.concurrency > worst.concurrency and p.tpot_s < worst.tpot_s]
    if slower:
        return (
            f"the measurement is not monotone: {1e3 * worst.tpot_s:.1f} ms at {worst.concurrency} users, "
            f"{1e3 * slower[0].tpot_s:.1f} ms at {slower[0].concurrency}"
        )
    return ""


def _beyond(worst: PointError, points: Sequence[PointError]) -> str:
    """What of the point lies beyond the fit, and whether the fit is near up to there; empty where nothing does."""
    fitted = [point for point in points if point.use == "fitted"]
    alike = [point for point in fitted if point.shape == worst.shape]
    if fitted and not alike:
        return _other_lengths(worst, fitted)
    if not alike or worst.concurrency <= max(map(_users, alike)):
        return ""
    last = max(alike, key=_users)
    beyond = f"lies beyond the fit, which has these lengths up to {last.concurrency} users"
    if abs(last.tpot_error) <= NEAR:
        return f"{beyond}, where the error is {last.tpot_error:+.1%}: extrapolated"
    return f"not known; it {beyond}, but the error is {last.tpot_error:+.1%} there already"


def _other_lengths(worst: PointError, fitted: Sequence[PointError]) -> str:
    """The same of a point whose lengths were not fitted."""
    beyond = "lies beyond the fit, which does not have these lengths"
    furthest = max(fitted, key=lambda point: abs(point.tpot_error))
    if abs(furthest.tpot_error) <= NEAR:
        return f"{beyond} and is within {abs(furthest.tpot_error):.1%} of all that it has: extrapolated"
    at_once = ", ".join(
        f"{1e3 * point.tpot_s:.1f} ms at {point.shape} (replayed {1e3 * point.replayed_tpot_s:.1f})"
        for point in fitted
        if point.concurrency == worst.concurrency
    )
    return (
        f"not known; it {beyond}, but the error is {furthest.tpot_error:+.0%} at a point that it has "
        f"({furthest.shape}, {furthest.concurrency} users)"
        + (f"; measured with as many users: {at_once}" if at_once else "")
    )


def _traded(worst: PointError, points: Sequence[PointError]) -> str:
    """Which other points the fit has traded this one for; empty where it has not."""
    sign = worst.tpot_error > 0
    for other in points:
        at_once = (other.use, other.concurrency) == ("fitted", worst.concurrency)
        if at_once and (other.tpot_error > 0) != sign and abs(other.tpot_error) > abs(worst.tpot_error) / 2:
            return (
                f"lengths pull the fit apart: {worst.tpot_error:+.0%} here, {other.tpot_error:+.0%} at {other.shape} "
                "with as many users"
            )
    if all((point.tpot_error > 0) == sign for point in points if point.shape == worst.shape):
        return f"all points of {worst.shape} are off in this direction: the fit trades them for other lengths"
    return ""


def _bent(worst: PointError, same: Sequence[PointError]) -> str:
    """Whether measured and replayed times bend to different sides of the line between the neighbours' times."""
    below = max((p for p in same if p.concurrency < worst.concurrency), key=_users, default=None)
    above = min((p for p in same if p.concurrency > worst.concurrency), key=_users, default=None)
    if below is None or above is None:
        return ""
    part = (worst.concurrency - below.concurrency) / (above.concurrency - below.concurrency)
    line = below.tpot_s + part * (above.tpot_s - below.tpot_s)
    replayed_line = below.replayed_tpot_s + part * (above.replayed_tpot_s - below.replayed_tpot_s)
    if (worst.tpot_s - line) * (worst.replayed_tpot_s - replayed_line) >= 0:
        return ""
    sides = ("above", "below") if worst.tpot_s > line else ("below", "above")
    return (
        f"another bend: between {below.concurrency} and {above.concurrency} users the measured time lies {sides[0]} "
        f"the line, the replayed one {sides[1]} it"
    )


def _users(point: PointError) -> int:
    return point.concurrency


def _error(point: Point, said: Replayed, parts: Split) -> PointError:
    use: Literal["fitted", "held out", "full cache"] = "fitted" if point in parts.fitted else "held out"
    if point.ttft_s > FULL_CACHE_S:
        use = "full cache"
    return PointError(
        shape=str(point.shape),
        concurrency=point.concurrency,
        use=use,
        ttft_s=point.ttft_s,
        replayed_ttft_s=said.ttft_s,
        tpot_s=point.tpot_s,
        replayed_tpot_s=said.tpot_s,
        output_tok_s=point.output_tok_s,
        replayed_output_tok_s=said.output_tok_s,
        preemptions=said.preemptions,
    )


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return median(found) if found else None
