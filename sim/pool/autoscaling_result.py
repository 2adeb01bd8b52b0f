"""The result of a day under a scaling policy: SLO attainment and the GPU time paid for."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class DayResult:
    """The result of one simulated day."""

    requests: int = 0
    met: int = 0
    """Number of requests that met both SLO targets: time to first token and time per output token."""
    requests_by_model: dict[str, int] = field(default_factory=dict)
    met_by_model: dict[str, int] = field(default_factory=dict)
    """Number of requests that met both SLO targets, by model."""
    ttft_violations: int = 0
    """Number of requests whose time to first token exceeded its target."""
    tpot_violations: int = 0
    """Number of requests whose time per output token exceeded its target."""
    gpu_s: float = 0.0
    """GPU seconds paid for: all of contracted hosts; elsewhere the time spent serving, waking and draining."""
    scale_ups: int = 0
    scale_downs: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    """Mean seconds per token after the first, for every answer of more than one token."""
    violations: list[tuple[str, float]] = field(default_factory=list)
    """Model and arrival time (seconds) of every request that violated the SLO."""
    awake: list[tuple[float, int]] = field(default_factory=list)
    """Pairs of time in seconds and replicas that hold GPUs, sampled at every tenth evaluation."""

    @property
    def attainment(self) -> float:
        """Share of requests (0 to 1) that met both SLO targets."""
        return self.met / max(1, self.requests)

    @property
    def worst_attainment(self) -> float:
        """The lowest attainment (0 to 1) of any model."""
        return min(
            (self.met_by_model.get(model, 0) / count for model, count in self.requests_by_model.items()),
            default=1.0,
        )

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens (0 to 1) found in caches."""
        return self.cached_tokens / max(1, self.prompt_tokens)

    @property
    def ttft_attainment(self) -> float:
        """Share of requests (0 to 1) that met the target for the time to first token."""
        return 1.0 - self.ttft_violations / max(1, self.requests)

    @property
    def tpot_attainment(self) -> float:
        """Share of requests (0 to 1) that met the target for the time per output token."""
        return 1.0 - self.tpot_violations / max(1, self.requests)

    @property
    def ttft_p99_s(self) -> float:
        """99th percentile of the time to first token, in seconds."""
        return _p99(self.ttft_s)

    @property
    def tpot_p99_s(self) -> float:
        """99th percentile of the answers' mean time per output token, in seconds."""
        return _p99(self.tpot_s)


def _p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else 0.0
