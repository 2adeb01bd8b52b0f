"""What became of a day under a scaling policy: promises kept and broken, GPU time paid for."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class DayResult:
    """What became of a day."""

    requests: int = 0
    met: int = 0
    """Requests with both promises kept: first token and time per token."""
    requests_by_model: dict[str, int] = field(default_factory=dict)
    met_by_model: dict[str, int] = field(default_factory=dict)
    """The same by model."""
    ttft_violations: int = 0
    """First token too late."""
    tpot_violations: int = 0
    """Too long a token."""
    gpu_s: float = 0.0
    """GPU seconds paid for: all of contracted hosts, elsewhere what is held by serving, waking and draining."""
    scale_ups: int = 0
    scale_downs: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    """Mean seconds a token after the first, of every answer of more than one token."""
    violations: list[tuple[str, float]] = field(default_factory=list)
    """Model and arrival of every request with a broken promise."""
    awake: list[tuple[float, int]] = field(default_factory=list)
    """(time, replicas that hold GPUs) at every tenth look."""

    @property
    def attainment(self) -> float:
        """Share of requests with their promises kept."""
        return self.met / max(1, self.requests)

    @property
    def worst_attainment(self) -> float:
        """The same of the model that fared worst."""
        return min(
            (self.met_by_model.get(model, 0) / count for model, count in self.requests_by_model.items()),
            default=1.0,
        )

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens found in caches."""
        return self.cached_tokens / max(1, self.prompt_tokens)

    @property
    def ttft_attainment(self) -> float:
        """Share of requests whose first token came in time."""
        return 1.0 - self.ttft_violations / max(1, self.requests)

    @property
    def tpot_attainment(self) -> float:
        """Share of requests whose tokens came as quickly as promised."""
        return 1.0 - self.tpot_violations / max(1, self.requests)

    @property
    def ttft_p99_s(self) -> float:
        """99th percentile of the time to the first token."""
        return _p99(self.ttft_s)

    @property
    def tpot_p99_s(self) -> float:
        """99th percentile of the answers' mean time per token."""
        return _p99(self.tpot_s)


def _p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else 0.0
