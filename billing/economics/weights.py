"""Estimated GPU time of tokens, from the engine profiles of the catalog: cost is shared by GPU-seconds.

A profile has a prefill speed (R tokens/s) and the duration of a decode step: `alpha + W + beta*B + gamma*KV` seconds
for B sequences that read KV tokens of cache, W of them for the experts that they use (workers/step_time.py), with
`accept` tokens per step and sequence. GPU time of a token on a model's default profile with G GPUs (a machine without
GPUs counts as one):

    uncached prompt token   G * (1/R + gamma * steps)
    cached prompt token     G * gamma * steps                       read from the cache, not computed
    output token            G * (alpha + W + beta*B) / (B * accept) + G * gamma * own / accept

Assumptions, as constants below: `B` is a quarter of the engine's slots; `steps`, the decode steps that read a prompt
token, are those of a typical answer; `own`, the tokens of its own answer that an output token reads from the cache, are
half of a typical answer. The attention of a prompt over its own context is left out. All weights are linear in tokens,
so the sums of an hour weigh as much as its requests.
"""

from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import lru_cache

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from workers.added_models import read_added
from workers.catalog import Catalog, EngineProfile, load_catalog
from workers.step_time import drafts_of

PICO_PER_S = 10**12
PICO_PER_US = 10**6
BATCH_PART = 4
"""Divisor of the engine's slots (max_num_seqs) that gives the typical batch."""
ANSWER_TOKENS = 256
"""Tokens of a typical answer."""


class Coefficients(msgspec.Struct, frozen=True):
    """GPU-picoseconds per token, by kind of token."""

    uncached: int
    cached: int
    output: int

    def picoseconds(self, uncached_input: int, cached_input: int, output: int) -> int:
        """GPU-picoseconds of the given numbers of tokens."""
        return uncached_input * self.uncached + cached_input * self.cached + output * self.output


UNKNOWN = Coefficients(uncached=100_000_000, cached=0, output=2_500_000_000)
"""For a model without an engine profile (an external engine): 10,000 tok/s of prefill, 400 tok/s of decode."""


class GpuWeights(msgspec.Struct, frozen=True):
    """Estimated GPU time by model."""

    models: dict[str, Coefficients]

    @classmethod
    def from_catalog(cls, catalog: Catalog) -> "GpuWeights":
        """Coefficients of every model of the catalog, from its default profile."""
        return cls({name: coefficients(model.profile()) for name, model in catalog.models.items()})

    def of(self, model: str) -> Coefficients:
        """The coefficients of `model`; UNKNOWN when the catalog does not have it."""
        return self.models.get(model, UNKNOWN)

    def picoseconds(self, model: str, uncached_input: int, cached_input: int, output: int) -> int:
        """Estimated GPU-picoseconds of the given numbers of tokens on `model`."""
        return self.of(model).picoseconds(uncached_input, cached_input, output)

    def microseconds(self, model: str, uncached_input: int, cached_input: int, output: int) -> int:
        """The same in whole GPU-microseconds, rounded half up; at least 1 for any work."""
        picoseconds = self.picoseconds(model, uncached_input, cached_input, output)
        return max((2 * picoseconds + PICO_PER_US) // (2 * PICO_PER_US), 1) if picoseconds > 0 else 0


def coefficients(profile: EngineProfile) -> Coefficients:
    """GPU-picoseconds per token on an engine of `profile`, computed in Decimal and rounded half up."""
    figures = {name: Decimal(str(figure.value)) for name, figure in profile.figures.items()}
    accept = figures.get("accept_per_step", Decimal(1))
    gamma = figures.get("step_per_kv_token_s", Decimal(0))
    batch = max(int(figures["max_num_seqs"]) // BATCH_PART, 1)
    gpus = max(profile.gpus, 1)
    with localcontext() as context:
        context.prec = 50
        read = gamma * ANSWER_TOKENS / accept
        step = figures["step_base_s"] + figures["step_per_seq_s"] * batch + _experts_s(profile, batch)
        output = step / (batch * accept) + gamma * (ANSWER_TOKENS // 2) / accept
        prefill = 1 / figures["prefill_tokens_per_s"]
        return Coefficients(
            uncached=_picoseconds(gpus * (prefill + read)),
            cached=_picoseconds(gpus * read),
            output=_picoseconds(gpus * output),
        )


def _experts_s(profile: EngineProfile, batch: int) -> Decimal:
    """Seconds of a step of `batch` sequences for the experts that they use, as workers/step_time.py has them."""
    figure = profile.figures.get("step_experts_s")
    if figure is None:
        return Decimal(0)
    positions = batch * (1 + drafts_of(profile.capacity))
    return Decimal(str(figure.value)) * (1 - (1 - Decimal(str(profile.expert_share))) ** positions)


def _picoseconds(seconds: Decimal) -> int:
    return int((seconds * PICO_PER_S).to_integral_value(rounding=ROUND_HALF_UP))


@lru_cache(maxsize=1)
def catalog_weights() -> GpuWeights:
    """Weights of Penstock's own catalog, cached."""
    return GpuWeights.from_catalog(load_catalog())


async def weights_in_force(connection: AsyncConnection, packaged: GpuWeights) -> GpuWeights:
    """`packaged`, the catalog's weights, with those of the models that admins have added."""
    added = await read_added(connection)
    return GpuWeights(
        {name: coefficients(model.profile()) for name, model in added.items()} | packaged.models
    )
