"""Re-rating: changed lines, unchanged lines, and a reversal that undoes them."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.invoicing.lines import CLASSES, UsageGroup
from billing.invoicing.rerate import (
    LineKey,
    NewRate,
    PriceOrigin,
    discounted,
    parse_spec,
    prices_from_rates,
    rerate,
    reversed_lines,
)
from core.errors import InvalidRequest

A, B = UUID(int=1), UUID(int=2)
LIST, DERIVED, OWN = 1, 2, 3
ORIGINS = {LIST: PriceOrigin(None, None), DERIVED: PriceOrigin(A, 1500), OWN: PriceOrigin(B, None)}


def group(
    tenant: UUID = A, version: int = LIST, model: str = "m", price: int = 10, **tokens: int
) -> UsageGroup:
    counts = {**dict.fromkeys(CLASSES, 0), **tokens}
    prices = dict.fromkeys(CLASSES, price)
    cost = sum(counts.values()) * price
    return UsageGroup(tenant, "usage", model, "standard", version, counts, prices, cost)


def rate(model: str = "m", tenant: UUID | None = None, **amounts: str) -> NewRate:
    return NewRate(
        **{"model": model, "input": "0.00001", "output": "0.00002", "tenant_id": tenant, **amounts}
    )  # type: ignore[arg-type]


def test_a_list_price_reaches_those_who_had_the_list_price() -> None:
    prices = prices_from_rates([rate()], ORIGINS)
    (line,) = rerate([group(input=100, output=5), group(model="other", input=5)], {}, prices)
    assert (line.tenant_id, line.token_class, line.tokens) == (A, "output", 5)
    assert (line.old_price, line.new_price) == (10, 20)
    assert (line.old_exact, line.new_exact, line.delta) == (50, 100, 50)


def test_discounts_follow_the_list_and_own_prices_do_not() -> None:
    listed = rate(input="100", output="200")
    prices = prices_from_rates([listed], ORIGINS)
    found = rerate([group(version=DERIVED, input=1), group(B, OWN, input=1)], {}, prices)
    assert [(line.tenant_id, line.new_price) for line in found] == [(A, 85_000_000)]
    own = prices_from_rates([listed, rate(tenant=B, input="1", output="1")], ORIGINS)
    assert own(group(B, OWN)) == dict.fromkeys(CLASSES, 10**6)


@given(price=st.integers(0, 10**15), bps=st.integers(0, 10_000))
def test_a_discount_is_rounded_half_up_to_the_picodollar(price: int, bps: int) -> None:
    assert abs(discounted(price, bps) * 10_000 - price * (10_000 - bps)) <= 5_000


counts = st.fixed_dictionaries({name: st.integers(0, 10**9) for name in CLASSES})


@given(tokens=counts, old=st.integers(0, 10**9), first=st.integers(0, 10**9), second=st.integers(0, 10**9))
def test_corrections_add_up_to_the_last_price_and_a_mirror_undoes_one(
    tokens: dict[str, int], old: int, first: int, second: int
) -> None:
    used = group(price=old, **tokens)
    one = rerate([used], {}, lambda _: dict.fromkeys(CLASSES, first))
    prior: dict[LineKey, int] = {line.key: line.delta for line in one}
    two = rerate([used], prior, lambda _: dict.fromkeys(CLASSES, second))
    total = sum(tokens.values())
    assert used.cost + sum(line.delta for line in (*one, *two)) == total * second
    assert sum(line.delta for line in (*one, *reversed_lines(one))) == 0
    assert reversed_lines(reversed_lines(one)) == one
    assert rerate([used], prior, lambda _: dict.fromkeys(CLASSES, first)) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "either rates or as_of"),
        (
            {"rates": [{"model": "m", "input": "1", "output": "1"}], "as_of": "2026-01-01"},
            "either rates or as_of",
        ),
        ({"rates": [{"model": "m", "input": "-1", "output": "1"}]}, "negative"),
        ({"rates": [{"model": "m", "input": "1", "output": "1e400"}]}, "output"),
        ({"rates": [{"model": "m", "input": "1", "output": "1", "tier": "gold"}]}, "tier must be"),
        ({"rates": [{"model": "", "input": "1", "output": "1"}]}, "model must be"),
        ({"rates": [{"model": "m", "input": "1", "output": "1"}] * 2}, "two rates of m"),
        ({"rates": [{"model": "m", "input": "1", "output": "1", "currency": "EUR"}]}, "currency"),
        ({"rates": [{"model": "m", "input": "1"}]}, "output"),
        ({"rates": "m"}, "not understood"),
    ],
)
def test_a_bad_specification_is_refused_in_words(data: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_spec(data)
