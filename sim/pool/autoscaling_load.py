"""Generates a day's load for a pool: arrival-rate curves over a day, and the requests that follow them.

A day may be compressed: `day_s` is its length in the simulation. Wake times and the five minutes before scaling
down are not compressed with it, so a compressed day is harder for every policy than a real one.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Curve = Callable[[float], float]
"""Maps the position in the day (0 to 1) to the load as a share of the daily peak."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, reduced to the fields that a pool needs."""

    key: int
    at: float
    model: str
    prompt: int
    output: int
    session: int
    prefix: int
    """Number of leading prompt tokens that the session's previous request left in the cache of the replica that
    ran it.
    """


@dataclass(frozen=True, slots=True)
class Lengths:
    """Request lengths: lognormal token counts, and conversations that return."""

    prompt: float = 6000.0
    prompt_cv: float = 1.0
    output: float = 350.0
    output_cv: float = 0.8
    returning: float = 0.5
    """Share of requests (0 to 1) that continue one of the open conversations."""
    max_prompt: int = 60_000
    conversations: int = 64
    """Number of conversations open at once; recent ones return most often (Zipf-like)."""


def diurnal(place: float) -> float:
    """Return a consumer product's load: lowest at four in the morning, a shoulder at noon, the peak in the evening."""
    hour = 24.0 * place
    return max(
        0.12,
        0.56
        - 0.34 * math.cos(2 * math.pi * (hour - 4.5) / 24)
        + 0.1 * math.cos(4 * math.pi * (hour - 9) / 24),
    )


def office(place: float) -> float:
    """Return an office product's load: almost none before eight, two steep ramps around lunch, low from seven
    in the evening.
    """
    hour = 24.0 * place
    work = (
        _ramp(hour, 7.5, 9.5)
        - 0.35 * (_ramp(hour, 11.5, 12.5) - _ramp(hour, 13.0, 14.0))
        - _ramp(hour, 16.5, 19.0)
    )
    return 0.08 + 0.92 * max(0.0, work)


def evening(place: float) -> float:
    """Return the office curve shifted by twelve hours."""
    return office((place + 0.5) % 1.0)


def _ramp(hour: float, start: float, end: float) -> float:
    return min(1.0, max(0.0, (hour - start) / (end - start)))


@dataclass(frozen=True, slots=True)
class Day:
    """The load of one model over one simulated day: a curve with noise, and optionally a flash crowd."""

    curve: Curve
    peak_rps: float
    day_s: float
    weather: float = 0.06
    """Standard deviation of the slow multiplicative noise, and of the factor by which whole days differ."""
    flash: float = 0.0
    """Height of a flash crowd as a share of the daily peak; 0 = none."""
    flash_rise_s: float = 60.0
    flash_fade_s: float = 600.0

    def rates(self, rng: random.Random, step_s: float = 10.0) -> list[float]:
        """Return the arrival rate in requests per second for every `step_s` of the day."""
        count = round(self.day_s / step_s)
        whole = math.exp(rng.gauss(0.0, self.weather))
        stay = math.exp(-step_s / 900.0)
        drift = rng.gauss(0.0, self.weather)
        began = self.day_s * rng.uniform(0.15, 0.85)
        rates = []
        for index in range(count):
            at = (index + 0.5) * step_s
            drift = stay * drift + math.sqrt(1.0 - stay * stay) * rng.gauss(0.0, self.weather)
            share = self.curve(at / self.day_s) * whole * math.exp(drift)
            rates.append(self.peak_rps * (share + self.flash * self._crowd(at - began)))
        return rates

    def _crowd(self, since: float) -> float:
        if since < 0.0:
            return 0.0
        if since < self.flash_rise_s:
            return since / self.flash_rise_s
        return math.exp(-(since - self.flash_rise_s) / self.flash_fade_s)


def arrivals(days: Sequence[tuple[str, Day, Lengths]], seed: int) -> list[Arrival]:
    """Return one day's requests of all models in order of arrival; the same seed gives the same requests."""
    found: list[Arrival] = []
    for model, day, lengths in days:
        rng = random.Random(f"{model} {seed}")  # noqa: S311
        talk = _Conversations(lengths, rng)
        for at in _times(day, rng):
            session, prompt, prefix = talk.next()
            output = _lognormal(lengths.output, lengths.output_cv, rng)
            found.append(Arrival(0, at, model, prompt, output, session, prefix))
            talk.record(session, prompt + output)
    found.sort(key=lambda row: (row.at, row.model))
    return [
        Arrival(key, row.at, row.model, row.prompt, row.output, row.session, row.prefix)
        for key, row in enumerate(found)
    ]


def _times(day: Day, rng: random.Random, step_s: float = 10.0) -> Iterator[float]:
    """Yield the arrivals of a Poisson process with the day's rates, by inverting the cumulative rate."""
    rates = day.rates(rng, step_s)
    total, sums = 0.0, [0.0]
    for rate in rates:
        total += rate * step_s
        sums.append(total)
    mark = rng.expovariate(1.0)
    while mark < total:
        index = bisect_right(sums, mark) - 1
        yield (index + (mark - sums[index]) / (sums[index + 1] - sums[index])) * step_s
        mark += rng.expovariate(1.0)


class _Conversations:
    """Open conversations; those at the front of the list continue more often than those at its end."""

    def __init__(self, lengths: Lengths, rng: random.Random) -> None:
        self._lengths, self._rng = lengths, rng
        self._open: list[int] = []
        self._sizes: dict[int, int] = {}
        self._count = 0

    def next(self) -> tuple[int, int, int]:
        """Return a session, its prompt tokens, and how many of them its previous request already contained."""
        fresh = _lognormal(self._lengths.prompt, self._lengths.prompt_cv, self._rng)
        if self._open and self._rng.random() < self._lengths.returning:
            session = self._open[int(len(self._open) * self._rng.random() ** 2)]
            prefix = self._sizes[session]
            added = max(1, fresh // 8)
            if prefix + added <= self._lengths.max_prompt:
                return session, prefix + added, prefix
            self._open.remove(session)
            del self._sizes[session]
        self._count += 1
        self._open.insert(self._rng.randrange(len(self._open) + 1), self._count)
        self._sizes[self._count] = 0
        if len(self._open) > self._lengths.conversations:
            del self._sizes[self._open.pop()]
        return self._count, min(fresh, self._lengths.max_prompt), 0

    def record(self, session: int, tokens: int) -> None:
        """Record that the conversation now has `tokens` tokens."""
        if session in self._sizes:
            self._sizes[session] = tokens


def _lognormal(mean: float, cv: float, rng: random.Random) -> int:
    sigma2 = math.log(1.0 + cv * cv)
    return max(1, round(rng.lognormvariate(math.log(mean) - sigma2 / 2.0, math.sqrt(sigma2))))


def _poisson(mean: float, rng: random.Random) -> int:
    """Draw a Poisson number: by counting exponential gaps for small means, otherwise by the normal approximation."""
    if mean > 60.0:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    count, mark = 0, rng.expovariate(1.0)
    while mark < mean:
        count += 1
        mark += rng.expovariate(1.0)
    return count
