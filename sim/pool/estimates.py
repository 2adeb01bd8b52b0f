"""An API process's estimates of a request's lengths before it runs, learned as in gateway/estimate.py."""

from dataclasses import dataclass

from sim.pool.contract import SimRequest

_SHARE = 0.05
"""Weight of the newest request in the moving averages, 0 to 1."""
_FIRST_TOKENS_PER_BYTE = 0.3
_FIRST_OUTPUT = 256.0
BYTES_PER_TOKEN = 4.0
"""Average bytes per token of the simulated prompts."""
BYTES_SPREAD = 0.2
"""Largest relative deviation of a prompt's bytes per token; its standard deviation is 11.5 %."""


@dataclass(slots=True)
class _Learned:
    tokens_per_byte: float = _FIRST_TOKENS_PER_BYTE
    output: float = _FIRST_OUTPUT


class Estimates:
    """The estimates of every API process; each learns from its own completed requests."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._learned: dict[tuple[int, str], _Learned] = {}

    def prompt_tokens(self, request: SimRequest, router: int) -> int:
        """Return the estimated prompt tokens from the prompt's bytes, because no tokenizer runs on arrival."""
        return max(1, int(self._bytes(request) * self._of(request, router).tokens_per_byte))

    def output_tokens(self, request: SimRequest, router: int) -> int:
        """Return the estimated output tokens from earlier answers of the same model."""
        return max(1, int(self._of(request, router).output))

    def learn(self, request: SimRequest, router: int) -> None:
        """Update the averages with the true counts of a completed request."""
        learned = self._of(request, router)
        ratio = request.prompt_tokens / self._bytes(request)
        learned.tokens_per_byte += _SHARE * (ratio - learned.tokens_per_byte)
        learned.output += _SHARE * (request.output_tokens - learned.output)

    def _of(self, request: SimRequest, router: int) -> _Learned:
        learned = self._learned.get((router, request.model))
        if learned is None:
            learned = self._learned[router, request.model] = _Learned()
        return learned

    def _bytes(self, request: SimRequest) -> float:
        spread = 1.0 + BYTES_SPREAD * (2.0 * _unit(self._seed, request.key) - 1.0)
        return max(1, request.prompt_tokens) * BYTES_PER_TOKEN * spread


def _unit(seed: int, key: int) -> float:
    """Return a number from 0 to 1 that depends on `seed` and `key` alone (SplitMix64's finaliser)."""
    mixed = (key + 1) * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return float(mixed ^ mixed >> 31) / 2.0**64
