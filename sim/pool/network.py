"""Message delays between processes, drawn so that all policies get the same delays."""

import random
from dataclasses import dataclass


def stream(seed: int, purpose: str) -> random.Random:
    """Return a generator for one purpose; draws for one purpose do not affect another."""
    return random.Random(f"{seed}:{purpose}")  # noqa: S311 - a simulation, no secret


@dataclass(frozen=True, slots=True)
class Network:
    """Ranges of delays in seconds, each drawn uniformly between its ends."""

    scheduler_s: tuple[float, float] = (0.0001, 0.0005)
    """Seconds one way between an API process and a central scheduler."""
    engine_s: tuple[float, float] = (0.0005, 0.002)
    """Seconds one way between an API process and an engine."""
    metrics_age_s: tuple[float, float] = (0.05, 0.2)
    """Age in seconds of scraped metrics when they arrive."""
    metrics_every_s: float = 0.5
    kv_age_s: tuple[float, float] = (0.005, 0.05)
    """Age in seconds of KV events when they arrive."""
    progress_every_s: float = 1.0
    """Seconds between two reports of output tokens (the gateway's own interval)."""


@dataclass(frozen=True, slots=True)
class CallDelays:
    """The delays of one request, equal for all policies."""

    to_scheduler_s: float
    from_scheduler_s: float
    to_engine_s: float
    from_engine_s: float


class Delays:
    """Draws the delays of a run."""

    def __init__(self, network: Network, seed: int) -> None:
        self.network = network
        self._calls = stream(seed, "network")
        self._metrics = stream(seed, "metrics")
        self._kv = stream(seed, "kv events")

    def of_call(self) -> CallDelays:
        """Return a request's delays; drawn once per arrival, so that they do not depend on the policy."""
        draw = self._calls.uniform
        scheduler, engine = self.network.scheduler_s, self.network.engine_s
        return CallDelays(draw(*scheduler), draw(*scheduler), draw(*engine), draw(*engine))

    def metrics_age_s(self) -> float:
        """Return the age in seconds of the next scrape when it arrives."""
        return self._metrics.uniform(*self.network.metrics_age_s)

    def kv_age_s(self) -> float:
        """Return the age in seconds of the next KV event when it arrives."""
        return self._kv.uniform(*self.network.kv_age_s)
