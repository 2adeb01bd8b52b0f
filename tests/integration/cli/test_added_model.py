"""A model is added while the whole platform runs, and is served by another host's simulated engine."""

import json
from pathlib import Path

import pytest

from tests.support.added_model import add_and_serve
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(600)

TINY = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 8192,
    "torch_dtype": "float32",
}  # fmt: skip


def test_a_model_is_added_priced_served_and_settled(tmp_path: Path) -> None:
    weights = tmp_path / "river"
    weights.mkdir()
    (weights / "config.json").write_text(json.dumps(TINY))
    stack = Stack(tmp_path / "data", "--engine", "sim").start()
    try:
        answer = add_and_serve(
            stack, tmp_path / "host", "--weights", str(weights), "--unchecked", engine="sim"
        )
        assert answer["model"] == "acme/river"
    finally:
        stack.stop()
