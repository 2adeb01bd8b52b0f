"""Estimated GPU time of tokens, from the engine profiles of the catalog (DESIGN §5: cost goes by GPU-seconds).

A profile says how fast an engine prefills (R tokens/s) and how long a decode step takes
(`alpha + beta*B + gamma*KV` seconds for B sequences that read KV tokens of cache, `accept` tokens a step and sequence).
From these, on a model's default profile with G GPUs (a machine without GPUs counts as one):

    uncached prompt token   G * (1/R + gamma * steps)
    cached prompt token     G * gamma * steps                       it is not computed, only read
    output token            G * (alpha + beta*B) / (B * accept) + G * gamma * own / accept

`B` is a typical batch, a quarter of the engine's slots; `steps` the decode steps that read a prompt token, those of a
typical answer; `own` half of a typical answer, which an output token finds of its own answer in the cache. These three
are assumptions of the split and stand below. All is linear in tokens, so an hour's sums weigh as much as its requests.
"""

from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import lru_cache

import msgspec

from workers.catalog import Catalog, EngineProfile, load_catalog

PICO_PER_S = 10**12
PICO_PER_US = 10**6
BATCH_PART = 4
"""The typical batch is this part of the engine's slots."""
ANSWER_TOKENS = 256
"""Tokens of a typical answer."""


class Coefficients(msgspec.Struct, frozen=True):
    """GPU-picoseconds that one token takes."""

    uncached: int
    cached: int
    output: int

    def picoseconds(self, uncached_input: int, cached_input: int, output: int) -> int:
        """GPU-picoseconds of so many tokens."""
        return uncached_input * self.uncached + cached_input * self.cached + output * self.output


UNKNOWN = Coefficients(uncached=100_000_000, cached=0, output=2_500_000_000)
"""For a model without an engine profile (somebody else's engine): 10,000 tok/s of prefill, 400 tok/s of decode."""


class GpuWeights(msgspec.Struct, frozen=True):
    """Estimated GPU time by model."""

    models: dict[str, Coefficients]

    @classmethod
    def from_catalog(cls, catalog: Catalog) -> "GpuWeights":
        """Weights of every model, from its default profile."""
        return cls({name: coefficients(model.profile()) for name, model in catalog.models.items()})

    def of(self, model: str) -> Coefficients:
        """The coefficients of a model; UNKNOWN for one that the catalog does not have."""
        return self.models.get(model, UNKNOWN)

    def picoseconds(self, model: str, uncached_input: int, cached_input: int, output: int) -> int:
        """Estimated GPU-picoseconds of tokens on `model`."""
        return self.of(model).picoseconds(uncached_input, cached_input, output)

    def microseconds(self, model: str, uncached_input: int, cached_input: int, output: int) -> int:
        """The same in whole GPU-microseconds, rounded half up; at least 1 for any work."""
        picoseconds = self.picoseconds(model, uncached_input, cached_input, output)
        return max((2 * picoseconds + PICO_PER_US) // (2 * PICO_PER_US), 1) if picoseconds > 0 else 0


def coefficients(profile: EngineProfile) -> Coefficients:
    """GPU-picoseconds a token on an engine of `profile`; its figures pass through Decimal once."""
    figures = {name: Decimal(str(figure.value)) for name, figure in profile.figures.items()}
    accept = figures.get("accept_per_step", Decimal(1))
    gamma = figures.get("step_per_kv_token_s", Decimal(0))
    batch = max(int(figures["max_num_seqs"]) // BATCH_PART, 1)
    gpus = max(profile.gpus, 1)
    with localcontext() as context:
        context.prec = 50
        read = gamma * ANSWER_TOKENS / accept
        step = figures["step_base_s"] + figures["step_per_seq_s"] * batch
        output = step / (batch * accept) + gamma * (ANSWER_TOKENS // 2) / accept
        prefill = 1 / figures["prefill_tokens_per_s"]
        return Coefficients(
            uncached=_picoseconds(gpus * (prefill + read)),
            cached=_picoseconds(gpus * read),
            output=_picoseconds(gpus * output),
        )


def _picoseconds(seconds: Decimal) -> int:
    return int((seconds * PICO_PER_S).to_integral_value(rounding=ROUND_HALF_UP))


@lru_cache(maxsize=1)
def catalog_weights() -> GpuWeights:
    """Weights of the catalog that comes with Penstock, read once."""
    return GpuWeights.from_catalog(load_catalog())
