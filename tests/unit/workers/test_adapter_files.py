"""What is accepted as a LoRA adapter, and what is wrong with the rest."""

import io
import json
from typing import Any

import pytest

from core.errors import InvalidRequest
from tests.support.adapters import CONFIG, safetensors, tensors
from workers.adapter_files import check_config, check_weights

NAME = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def check(raw: bytes, rank: int = 4) -> None:
    check_weights(io.BytesIO(raw), len(raw), rank)


def header(content: Any, data: bytes = b"") -> bytes:
    raw = json.dumps(content).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def test_what_peft_writes_is_accepted() -> None:
    assert check_config(json.dumps(CONFIG).encode()) == 4
    assert check_config(json.dumps(CONFIG | {"rank_pattern": {"q_proj": 8}}).encode()) == 8
    check(safetensors(tensors()))
    check(
        header(
            {
                "__metadata__": {"format": "pt"},
                NAME: {"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]},
            },
            b"1234",
        )
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"peft_type": "IA3"}, "its peft_type is 'IA3', and must be 'LORA'"),
        ({"modules_to_save": ["lm_head"]}, "it has modules_to_save"),
        ({"bias": "all"}, "its bias is 'all'"),
        ({"use_dora": True}, "it uses DoRA"),
        ({"r": 0}, "its rank is 0"),
        ({"r": 513}, "its rank is 513"),
        ({"r": "four"}, "cannot be read"),
    ],
)
def test_a_configuration_that_engines_cannot_load_is_refused(change: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem) as refused:
        check_config(json.dumps(CONFIG | change).encode())
    assert refused.value.param == "config"


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff", b"{}", b" " * 65_537])
def test_a_configuration_that_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        check_config(raw)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "no safetensors file"),
        (b"PK\x03\x04" * 10, "no safetensors file"),
        ((2**62).to_bytes(8, "little") + b"{}", "no safetensors file"),
        ((2).to_bytes(8, "little") + b"{}", "has no weights"),
        ((2).to_bytes(8, "little") + b"[]", "cannot be read"),
        (header({NAME: 1}), "cannot be read"),
        (header({"lm_head": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}, b"1234"), "no weight of"),
        (header({NAME: {"dtype": "I8", "shape": [1, 1], "data_offsets": [0, 1]}}, b"1"), "must be a matrix"),
        (header({NAME: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"1234"), "must be a matrix"),
        (header({NAME: {"dtype": "F32", "shape": [5, 1], "data_offsets": [0, 20]}}, b"1" * 20), "has the rank 5"),
        (header({NAME: {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 8]}}, b"1" * 8), "does not fit its shape"),
        (header({NAME: {"dtype": "F32", "shape": [1, 1], "data_offsets": [4, 8]}}, b"1234"), "does not fit its shape"),
        (header({NAME: {"dtype": "F32", "shape": [1, 1], "data_offsets": [-4, 0]}}, b"1234"), "does not fit its shape"),
    ],
)  # fmt: skip
def test_weights_that_are_none_are_refused(raw: bytes, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem) as refused:
        check(raw)
    assert refused.value.param == "weights"
