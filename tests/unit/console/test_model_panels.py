"""What the forms of models and adapters take, and what their tables show."""

from datetime import UTC, datetime

import pytest

from admin.adapters import AdapterView
from billing.pricing.prices import PriceView
from console.format import sentence
from console.panels.adapters import adapter_rows, price_cell
from console.panels.added_model import host_choices, parse_arguments, parse_gpus
from core.errors import InvalidRequest
from core.ids import uuid7
from workers.catalog import load_catalog

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def test_arguments_are_lines() -> None:
    lines = 'max-model-len=32768\n\n  --enable-lora \nrope-scaling={"factor": 2}\nkv-cache-dtype=fp8\n'
    assert parse_arguments(lines) == {
        "max-model-len": 32768,
        "enable-lora": True,
        "rope-scaling": {"factor": 2},
        "kv-cache-dtype": "fp8",
    }
    assert parse_arguments("") == {}
    with pytest.raises(InvalidRequest, match="max-num-seqs is given twice"):
        parse_arguments("max-num-seqs=1\nmax-num-seqs=2")
    with pytest.raises(InvalidRequest, match="an argument is NAME=VALUE"):
        parse_arguments("two words")


@pytest.mark.parametrize("text", ["", "two", "-1", "1.5", "12345"])
def test_gpus_are_a_whole_number(text: str) -> None:
    with pytest.raises(InvalidRequest, match="must be a whole number"):
        parse_gpus(text)
    assert parse_gpus(" 2 ") == 2


def test_kinds_of_hosts_are_those_whose_fit_can_be_computed() -> None:
    choices = host_choices(load_catalog().hosts)
    assert choices["gpu-h100x8-640gb"] == "gpu-h100x8-640gb (8 × H100)"
    assert choices["local-cpu"] == "local-cpu (no GPU)"
    assert "external" not in choices


def test_messages_become_sentences() -> None:
    assert sentence("the name is taken") == "The name is taken."
    assert sentence("vLLM refuses it.") == "vLLM refuses it."


def test_adapters_of_models_that_are_gone_are_not_ready() -> None:
    def adapter(model: str, source: str) -> AdapterView:
        return AdapterView(
            uuid7(), uuid7(), model, "support", f"{model}:support:abcd", source, 8, 1_234_567, (), NOW
        )

    here, gone = adapter_rows(
        [adapter("llama", "upload"), adapter("old", "acme/lora@" + "c" * 40)], {"llama"}, NOW
    )
    assert (here["state"]["t"], gone["state"]["t"]) == ("Ready", "Not served")
    assert (here["source"]["t"], gone["source"]["t"]) == ("Upload", "acme/lora")
    assert gone["source"]["sub"] == "commit cccccccccccc"
    assert (here["size"]["t"], here["size"]["sub"]) == ("1.2 MB", "1,234,567 bytes")
    assert here["public"]["copy"] is True
    assert "acts" not in here
    assert here["price"]["t"] == "As its model"
    (owned,) = adapter_rows([adapter("llama", "upload")], {"llama"}, NOW, [("delete", "Delete", "bad")])
    assert list(owned["acts"]["acts"]) == ["delete"]


def test_an_adapter_shows_its_own_price_the_standard_one_first() -> None:
    def price(tier: str, status: str = "current") -> PriceView:
        return PriceView(
            1, "llama:support:abcd", tier, uuid7(), "0.50", "0.10", "1.60", "2.00", NOW.isoformat(), None, "finance",
            status, None, None,
        )  # fmt: skip

    assert price_cell([price("standard", "scheduled")])["sub"] == "its own is scheduled"
    shown = price_cell([price("batch"), price("standard"), price("priority", "scheduled")])
    assert (shown["t"], shown["sub"]) == ("$0.50 / $0.10 / $1.60 / $2.00", "batch has another")
    assert price_cell([price("batch")])["sub"] == "batch"
