"""The service-level rule of a contract."""

from typing import Any

import msgspec
import pytest

from billing.pricing.sla_terms import parse_sla
from core.errors import InvalidRequest

TTFT = {"metric": "ttft", "percentile": 95, "threshold": 800, "credit_percent": 10}
UP = {"metric": "availability", "threshold": "99.9", "credit_percent": 100}


@pytest.mark.parametrize("rule", [TTFT, UP])
def test_a_rule_is_kept_as_it_was_written(rule: dict[str, Any]) -> None:
    assert msgspec.to_builtins(parse_sla(rule)) == rule


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {**TTFT, "metric": "tpot"},
        {**TTFT, "metric": ["ttft"]},
        {**TTFT, "percentile": 94},
        {**TTFT, "percentile": True},
        {**TTFT, "percentile": None},
        {**TTFT, "threshold": "800"},
        {**TTFT, "threshold": 0},
        {**TTFT, "threshold": 600_001},
        {**TTFT, "credit_percent": 0},
        {**TTFT, "credit_percent": 101},
        {**TTFT, "credit_percent": "10"},
        {**TTFT, "credit_percent": True},
        {**TTFT, "extra": 1},
        {**UP, "percentile": 95},
        {**UP, "threshold": "100.1"},
        {**UP, "threshold": "0"},
        {**UP, "threshold": "99.9999"},
        {**UP, "threshold": "NaN"},
        {**UP, "threshold": "1e999999"},
        {**UP, "threshold": "many"},
        {**UP, "threshold": None},
        {**UP, "threshold": True},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_sla(rule)
    assert refused.value.param == "sla"
