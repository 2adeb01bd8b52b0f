"""How long things take between processes, drawn so that two policies meet the same delays."""

import random
from dataclasses import dataclass


def stream(seed: int, purpose: str) -> random.Random:
    """A generator for one purpose: what is drawn for one never shifts what is drawn for another."""
    return random.Random(f"{seed}:{purpose}")  # noqa: S311 - a simulation, no secret


@dataclass(frozen=True, slots=True)
class Network:
    """Ranges of delays in seconds, each drawn evenly between its ends."""

    scheduler_s: tuple[float, float] = (0.0001, 0.0005)
    """One way between an API process and a central scheduler."""
    engine_s: tuple[float, float] = (0.0005, 0.002)
    """From an API process to an engine, and from the engine's token back to the API process."""
    metrics_age_s: tuple[float, float] = (0.05, 0.2)
    """Age of scraped metrics when they arrive."""
    metrics_every_s: float = 0.5
    kv_age_s: tuple[float, float] = (0.005, 0.05)
    """Age of KV events when they arrive."""
    progress_every_s: float = 1.0
    """Between two reports of output tokens so far (the gateway's own interval)."""


@dataclass(frozen=True, slots=True)
class CallDelays:
    """The delays that one request meets, whatever the policy."""

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
        """A request's delays; drawn once per arrival, so that they do not depend on the policy."""
        draw = self._calls.uniform
        scheduler, engine = self.network.scheduler_s, self.network.engine_s
        return CallDelays(draw(*scheduler), draw(*scheduler), draw(*engine), draw(*engine))

    def metrics_age_s(self) -> float:
        """Age of the next scrape when it arrives."""
        return self._metrics.uniform(*self.network.metrics_age_s)

    def kv_age_s(self) -> float:
        """Age of the next KV event when it arrives."""
        return self._kv.uniform(*self.network.kv_age_s)
