"""Cost per million tokens from a GPU's price and an engine's speed, applied to a published example.

DigitalOcean (2026-02-19) reports for Llama-3.3-70B FP8: 2,000 tok/s on 2 H100 at $1.472 per million tokens, against
823 tok/s on 4 H100 at $5.80 before optimisation. docs/finance/gpu-economics.md discusses the result.
"""

from decimal import ROUND_HALF_UP, Decimal, localcontext

import msgspec

from core.errors import InvalidRequest

SECONDS_PER_HOUR = 3600
MTOK = 10**6
CATALOG_USD_PER_GPU_HOUR = Decimal("4.41")
"""DigitalOcean's list price of an H100 (2026-10-01), as in workers/catalog.toml."""


class PublishedCase(msgspec.Struct, frozen=True):
    """The published figures of one configuration."""

    name: str
    gpus: int
    tokens_per_s: int
    usd_per_mtok: Decimal


PUBLISHED = (
    PublishedCase("optimised, 2 x H100", 2, 2000, Decimal("1.472")),
    PublishedCase("plain, 4 x H100", 4, 823, Decimal("5.80")),
)


def cost_per_mtok(usd_per_gpu_hour: Decimal, gpus: int, tokens_per_s: int) -> Decimal:
    """Dollars per million tokens of `gpus` (>= 1) fully busy GPUs that make `tokens_per_s` (>= 1) in all.

    Raises InvalidRequest for a negative price or a count below 1.
    """
    if usd_per_gpu_hour < 0 or gpus < 1 or tokens_per_s < 1:
        raise InvalidRequest("a price cannot be negative, and it takes a GPU and a token to cost something")
    with localcontext() as context:
        context.prec = 50
        return usd_per_gpu_hour * gpus * MTOK / (tokens_per_s * SECONDS_PER_HOUR)


def gpu_hour_price(usd_per_mtok: Decimal, gpus: int, tokens_per_s: int) -> Decimal:
    """The dollars per GPU-hour at which `cost_per_mtok` gives `usd_per_mtok`. Raises InvalidRequest as it does."""
    if usd_per_mtok < 0 or gpus < 1 or tokens_per_s < 1:
        raise InvalidRequest("a price cannot be negative, and it takes a GPU and a token to cost something")
    with localcontext() as context:
        context.prec = 50
        return usd_per_mtok * tokens_per_s * SECONDS_PER_HOUR / (gpus * MTOK)


class ExampleRow(msgspec.Struct, frozen=True):
    """One configuration with its inputs and results; dollars are rounded to four decimals."""

    configuration: str
    gpus: int
    tokens_per_s: int
    published_usd_per_mtok: str
    implied_usd_per_gpu_hour: str
    """The price per GPU-hour at which the formula gives the published cost."""
    at_other_price_usd_per_mtok: str
    """The cost at the price that the other configuration implies."""
    at_list_price_usd_per_mtok: str
    """The cost at the list price of an H100."""


class Example(msgspec.Struct, frozen=True):
    """Both published configurations, and the assumption that cannot hold for them."""

    rows: list[ExampleRow]
    list_usd_per_gpu_hour: str
    published_ratio: str
    ratio_at_one_price: str
    conclusion: str


def published_example() -> Example:
    """Compute both configurations at the price each implies, at the other's price and at the list price."""
    implied = [gpu_hour_price(case.usd_per_mtok, case.gpus, case.tokens_per_s) for case in PUBLISHED]
    rows = [
        ExampleRow(
            configuration=case.name,
            gpus=case.gpus,
            tokens_per_s=case.tokens_per_s,
            published_usd_per_mtok=str(case.usd_per_mtok),
            implied_usd_per_gpu_hour=_format_usd(own),
            at_other_price_usd_per_mtok=_format_usd(cost_per_mtok(other, case.gpus, case.tokens_per_s)),
            at_list_price_usd_per_mtok=_format_usd(
                cost_per_mtok(CATALOG_USD_PER_GPU_HOUR, case.gpus, case.tokens_per_s)
            ),
        )
        for case, own, other in zip(PUBLISHED, implied, reversed(implied), strict=True)
    ]
    fast, slow = PUBLISHED
    with localcontext() as context:
        context.prec = 50
        published = slow.usd_per_mtok / fast.usd_per_mtok
        one_price = Decimal(slow.gpus * fast.tokens_per_s) / (fast.gpus * slow.tokens_per_s)
    return Example(
        rows=rows,
        list_usd_per_gpu_hour=str(CATALOG_USD_PER_GPU_HOUR),
        published_ratio=_format_usd(published),
        ratio_at_one_price=_format_usd(one_price),
        conclusion=(
            f"One price per GPU-hour cannot give both figures: it makes them differ {_format_usd(one_price)} times, "
            f"published are {_format_usd(published)} times. $1.472 takes ${_format_usd(implied[0])} a GPU-hour, "
            f"$5.80 takes ${_format_usd(implied[1])}. The assumption that does not hold is that both ran at the same "
            "price of a GPU, fully busy at the speed given."
        ),
    )


def _format_usd(value: Decimal) -> str:
    return str(value.quantize(Decimal("0.0001"), rounding=ROUND_HALF_UP))
