"""Weights follow exactly from the engine profile; the published example is reproduced."""

from decimal import Decimal

import pytest

from billing.economics.published_costs import PUBLISHED, cost_per_mtok, gpu_hour_price, published_example
from billing.economics.weights import UNKNOWN, GpuWeights, coefficients
from core.errors import InvalidRequest
from workers.catalog import load_catalog

CATALOG = load_catalog()


def test_coefficients_follow_the_formula() -> None:
    profile = CATALOG.model("deepseek-v3.2").profile("tp8")
    found = coefficients(profile)
    gamma, accept, batch = Decimal("1.3e-9"), Decimal("1.9"), 64
    read = 8 * gamma * 256 / accept
    experts = Decimal("0.012") * (
        1 - (1 - Decimal(8) / 256) ** (2 * batch)
    )  # one draft: two positions a sequence
    step = Decimal("0.0076") + Decimal("3.4e-5") * batch + experts
    assert found.uncached == round((Decimal(8) / 23200 + read) * 10**12)
    assert found.cached == round(read * 10**12)
    assert found.output == round((8 * step / (batch * accept) + 8 * gamma * 128 / accept) * 10**12)


@pytest.mark.parametrize("name", sorted(CATALOG.models))
def test_cached_tokens_weigh_less_than_uncached_less_than_output(name: str) -> None:
    found = GpuWeights.from_catalog(CATALOG).of(name)
    assert 0 <= found.cached < found.uncached < found.output


def test_an_unknown_model_and_no_work() -> None:
    weights = GpuWeights.from_catalog(CATALOG)
    assert weights.of("somebody/elses") == UNKNOWN
    assert weights.microseconds("somebody/elses", 0, 0, 0) == 0
    assert weights.microseconds("somebody/elses", 10, 0, 2) == 6000
    assert GpuWeights({"m": UNKNOWN}).picoseconds("m", 1, 5, 0) == UNKNOWN.uncached


def test_weights_are_linear_in_tokens() -> None:
    weights = GpuWeights.from_catalog(CATALOG)
    whole = weights.picoseconds("llama-3.3-70b", 700, 300, 50)
    parts = weights.picoseconds("llama-3.3-70b", 400, 100, 20) + weights.picoseconds(
        "llama-3.3-70b", 300, 200, 30
    )
    assert whole == parts


def test_the_published_example() -> None:
    fast, slow = PUBLISHED
    assert gpu_hour_price(fast.usd_per_mtok, fast.gpus, fast.tokens_per_s) == Decimal("5.2992")
    assert cost_per_mtok(Decimal("5.2992"), 2, 2000) == Decimal("1.472")
    assert gpu_hour_price(slow.usd_per_mtok, slow.gpus, slow.tokens_per_s) == Decimal("4.29606")
    shown = published_example()
    assert [row.at_other_price_usd_per_mtok for row in shown.rows] == ["1.1934", "7.1543"]
    assert [row.at_list_price_usd_per_mtok for row in shown.rows] == ["1.2250", "5.9538"]
    assert (shown.published_ratio, shown.ratio_at_one_price) == ("3.9402", "4.8603")


@pytest.mark.parametrize(("price", "gpus", "speed"), [("-1", 1, 1), ("1", 0, 1), ("1", 1, 0)])
def test_nonsense_is_refused(price: str, gpus: int, speed: int) -> None:
    for function in (cost_per_mtok, gpu_hour_price):
        with pytest.raises(InvalidRequest):
            function(Decimal(price), gpus, speed)
