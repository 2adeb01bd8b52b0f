"""Arrival processes: arrival rates as step functions of time, and Poisson arrivals that follow them."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """A rate relative to its mean: `factors[i]` holds from `edges[i]` to `edges[i + 1]` (seconds)."""

    edges: Floats
    factors: Floats
    groups: NDArray[np.int64]
    """Number of the burst that each step belongs to; -1 = none."""


class Arrivals(Protocol):
    """A process of arrivals."""

    def steps(self, rng: np.random.Generator, begin: float, seconds: float) -> Steps:
        """Return the rate from `begin` (at most 0) to `seconds`; it is later scaled to a mean of 1 over [0,
        seconds].
        """


@dataclass(frozen=True, slots=True)
class Steady:
    """A constant rate."""

    def steps(self, rng: np.random.Generator, begin: float, seconds: float) -> Steps:
        """Return the rate; see Arrivals."""
        return Steps(np.array([begin, seconds]), np.ones(1), np.full(1, -1))


@dataclass(frozen=True, slots=True)
class Bursts:
    """A Markov-modulated Poisson process of two states, on and off, whose lengths are exponential."""

    on_s: float
    off_s: float
    off_factor: float
    """Rate in the off state, relative to the rate in the on state."""

    def steps(self, rng: np.random.Generator, begin: float, seconds: float) -> Steps:
        """Return the rate; see Arrivals."""
        cycles = int((seconds - begin) / (self.on_s + self.off_s) * 2) + 20
        lengths = rng.exponential(np.tile([self.off_s, self.on_s], cycles))
        edges = begin + np.concatenate(([0.0], np.cumsum(lengths)))
        count = max(1, int(np.searchsorted(edges, seconds)))
        edges = np.append(edges[:count], seconds)
        on = np.arange(count) % 2 == 1
        return Steps(edges, np.where(on, 1.0, self.off_factor), np.where(on, np.arange(count) // 2, -1))


@dataclass(frozen=True, slots=True)
class Day:
    """A day of an interactive service, compressed into the run: quiet at night, busy from morning to evening.

    Two harmonics as in published diurnal load (the peak is about 2.3 times the mean of the night), and noise of
    10 % between successive 15-minute intervals.
    """

    slots: int = 96

    def steps(self, rng: np.random.Generator, begin: float, seconds: float) -> Steps:
        """Return the rate; see Arrivals."""
        slot_s = seconds / self.slots
        before = math.ceil(-begin / slot_s)
        index = np.arange(-before, self.slots)
        phase = 2 * np.pi * (index / self.slots + rng.random())
        curve = 1 + 0.55 * np.sin(phase) + 0.15 * np.sin(2 * phase + 0.8)
        noise = rng.lognormal(0.0, 0.1, len(index))
        edges = np.append(index, self.slots) * slot_s
        return Steps(edges, curve * noise, np.full(len(index), -1))


def poisson(steps: Steps, per_s: float, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """Return Poisson arrivals from time 0 on that follow the steps at `per_s` on average, and each arrival's burst."""
    lengths = np.diff(steps.edges)
    inside = np.diff(np.maximum(steps.edges, 0.0))
    mean = float((steps.factors * inside).sum()) / float(inside.sum())
    mass = np.concatenate(([0.0], np.cumsum(steps.factors * lengths))) * (per_s / mean)
    marks = np.sort(rng.random(rng.poisson(mass[-1]))) * mass[-1]
    step = np.clip(np.searchsorted(mass, marks, side="right") - 1, 0, len(lengths) - 1)
    return np.interp(marks, mass, steps.edges), steps.groups[step]
