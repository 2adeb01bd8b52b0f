"""Makes the model `penstock/tiny`: a few megabytes of a real architecture with seeded random weights.

Runs as a script inside the engine's environment (`.engine/bin/python workers/tiny_model.py DIR`), which has
tokenizers, numpy and safetensors; the platform's own environment does not need them. Its output is meaningless;
tokens, usage, caching and latency are those of a real engine.
"""

import json
import os
import pydoc_data.topics
import sys
import tempfile
from pathlib import Path
from typing import Any

SEED = 20260101
CONTEXT = 2048
VOCABULARY = 4096
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 256, 2, 4, 2, 64, 512
STAMP = "penstock-tiny.json"
"""Name of the file that is written last and marks a complete directory."""
VERSION = 1
"""Version in that file; increase it when the model changes."""

_END, _START, _STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def is_complete(directory: Path) -> bool:
    """Whether `directory` holds the model of this version."""
    try:
        return bool(json.loads((directory / STAMP).read_text())["version"] == VERSION)
    except (OSError, ValueError, KeyError):
        return False


def make(directory: Path) -> None:
    """Write the model into `directory` atomically; does nothing when it is complete."""
    if is_complete(directory):
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".tiny-") as scratch:
        target = Path(scratch) / "model"
        target.mkdir(mode=0o755)
        _write_tokenizer(target)
        _write_config(target)
        _write_weights(target)
        _write_json(target / STAMP, {"version": VERSION, "seed": SEED})
        if directory.exists():
            os.rename(directory, Path(scratch) / "old")
        os.rename(target, directory)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1))


def _write_tokenizer(target: Path) -> None:
    """Train a byte-level BPE on the help topics that come with Python."""
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[_END, _START, _STOP],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    topics: dict[str, str] = pydoc_data.topics.topics
    tokenizer.train_from_iterator([topics[name] for name in sorted(topics)], trainer)
    tokenizer.save(str(target / "tokenizer.json"))
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _STOP,
        "pad_token": _END,
        "additional_special_tokens": [_START, _STOP],
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    _write_json(target / "tokenizer_config.json", facts)


def _write_config(target: Path) -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": 2,
        "pad_token_id": 0,
        "use_cache": True,
    }
    _write_json(target / "config.json", config)
    _write_json(
        target / "generation_config.json", {"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": True}
    )


def _write_weights(target: Path) -> None:
    import numpy  # type: ignore[import-not-found,unused-ignore]  # in the engine's environment only
    from safetensors.numpy import save_file  # type: ignore[import-not-found]  # in the engine's environment only

    random = numpy.random.default_rng(SEED)

    def matrix(rows: int, columns: int) -> Any:
        return (random.standard_normal((rows, columns)) * 0.05).astype(numpy.float32)

    def ones(size: int) -> Any:
        return numpy.ones(size, dtype=numpy.float32)

    weights = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN), "model.norm.weight": ones(HIDDEN)}
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        weights[f"{layer}.self_attn.q_proj.weight"] = matrix(HEADS * HEAD_DIM, HIDDEN)
        weights[f"{layer}.self_attn.k_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        weights[f"{layer}.self_attn.v_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        weights[f"{layer}.self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM)
        weights[f"{layer}.self_attn.q_norm.weight"] = ones(HEAD_DIM)
        weights[f"{layer}.self_attn.k_norm.weight"] = ones(HEAD_DIM)
        weights[f"{layer}.mlp.gate_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        weights[f"{layer}.mlp.up_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        weights[f"{layer}.mlp.down_proj.weight"] = matrix(HIDDEN, INTERMEDIATE)
        weights[f"{layer}.input_layernorm.weight"] = ones(HIDDEN)
        weights[f"{layer}.post_attention_layernorm.weight"] = ones(HIDDEN)
    save_file(weights, str(target / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())
