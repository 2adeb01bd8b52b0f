"""Shapes of models: weights and cache as published, and what is wrong named."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.errors import InvalidRequest
from workers.model_config import MAX_CONFIG_BYTES, fetch_config, read_config, shape_of, weight_bytes

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}  # fmt: skip
"""Llama-3.3-70B, as its config.json states it."""
MINIMAX: dict[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"], "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
    "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 200064,
    "max_position_embeddings": 196608, "num_local_experts": 256, "num_experts_per_tok": 8,
    "quantization_config": {"quant_method": "fp8", "fmt": "float8_e4m3fn"},
}  # fmt: skip
"""MiniMax-M2.5: 230 billion weights, 10 of them active."""
DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
"""DeepSeek-V3: 671 billion weights, 37 of them active."""


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [(LLAMA, 70.6e9, 69.5e9), (MINIMAX, 229e9, 10e9), (DEEPSEEK, 671e9, 36.6e9)],
)
def test_weights_are_those_that_are_published(config: dict[str, Any], total: float, active: float) -> None:
    shape = shape_of(config)
    assert shape.expert_weights + shape.other_weights == pytest.approx(total, rel=0.01)
    assert shape.active_weights == pytest.approx(active, rel=0.05)


def test_heads_of_the_cache_are_split_and_latents_are_not() -> None:
    assert shape_of(LLAMA).kv_numbers(1) == 2 * 80 * 8 * 128
    assert shape_of(LLAMA).kv_numbers(2) == 80 * 8 * 128
    assert shape_of(LLAMA).kv_numbers(16) == 2 * 80 * 128, "a head cannot be halved"
    assert shape_of(DEEPSEEK).kv_numbers(8) == 61 * (512 + 64)


def test_layers_without_a_cache_do_not_count() -> None:
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 20
    assert shape_of({**LLAMA, "layer_types": kinds}).kv_layers == 20


@pytest.mark.parametrize(
    ("quantization", "weights"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "compressed-tensors", "g": {"weights": {"num_bits": 8, "type": "float"}}}, "fp8"),
        ({"quant_method": "compressed-tensors", "g": {"weights": {"num_bits": 4, "type": "int"}}}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
    ],
)  # fmt: skip
def test_the_number_format_of_the_weights(quantization: dict[str, Any] | None, weights: str) -> None:
    assert shape_of({**LLAMA, "quantization_config": quantization}).weights == weights


def test_the_text_part_of_a_model_of_images_counts() -> None:
    shape = shape_of({"architectures": ["XForConditionalGeneration"], "text_config": LLAMA})
    assert (shape.layers, shape.architecture) == (80, "LlamaForCausalLM")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "no num_hidden_layers"),
        ({"num_hidden_layers": 0}, "no num_hidden_layers"),
        ({"hidden_size": "big"}, "hidden_size is big"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"vocab_size": 10**30}, "vocab_size is"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"num_local_experts": 4, "num_experts_per_tok": 5}, "contradicts itself"),
        ({"layer_types": ["mamba"]}, "contradicts itself"),
    ],
)
def test_what_is_missing_or_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        shape_of({**LLAMA, **change})


def test_a_directory_has_a_configuration_and_weights(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InvalidRequest, match="not a JSON object"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidRequest, match="not JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "a.safetensors").write_bytes(b"12345")
    (tmp_path / "b.safetensors").write_bytes(b"123")
    assert read_config(tmp_path) == LLAMA
    assert weight_bytes(tmp_path) == 8


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (MAX_CONFIG_BYTES + 1, "the hub states 1,048,577 bytes"),
        (None, "the hub does not state how large it is"),
    ],
)
def test_a_configuration_of_the_hub_that_is_too_large_is_not_downloaded(
    monkeypatch: pytest.MonkeyPatch, size: int | None, message: str
) -> None:
    def download(hub_id: str, file: str, *, revision: str | None, dry_run: bool = False) -> SimpleNamespace:
        assert dry_run, "it is downloaded"
        return SimpleNamespace(file_size=size, commit_hash="0" * 40)

    monkeypatch.setattr("workers.model_config.hf_hub_download", download)
    with pytest.raises(InvalidRequest, match=message):
        fetch_config("acme/large", None)


@pytest.mark.parametrize("name", ["", "a/b/c", "-x", "a b"])
def test_a_name_that_no_hub_has_is_refused_before_any_call(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is no name on the hub"):
        fetch_config(name, None)
