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
CONTEXT = 65536
"""Tokens of prompt and answer together: the prompts of agents alone have tens of thousands."""
VOCABULARY = 4096
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 256, 2, 1, 1, 64, 512
"""One head: the time of a long prompt goes into attention."""
STAMP = "penstock-tiny.json"
"""Name of the file that is written last and marks a complete directory."""
VERSION = 2
"""Version in that file; increase it when the model changes."""

_END, _START, _STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_THINK, _THOUGHT = "<think>", "</think>"
_BLANKS = "\u0120\u010a\u0109\u010d"
"""Blank, line feed, tab and carriage return as byte-level tokenizers write them."""
_BIAS, _BIAS_SCALE = 0, 4.0
"""Coordinate of the hidden state that is the same for all tokens, and its weight in the last norm: there the output
layer has a bias for each token."""
_RARE, _FREQUENT = -1.2, 0.5
"""Bias of tokens of blanks, which a grammar allows almost everywhere: they would fill the arguments of tool calls. And
of `</think>`: reasoning ends after some dozens of tokens."""
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\\n# Tools\\n\\nFunctions that you may call:\\n<tools>' }}"
    "{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}"
    '{{ \'\\n</tools>\\n\\nWrite each call as <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>.\' }}'
    "{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{{ '<|im_start|>user\\n<tool_response>\\n' }}"
    "{% else %}{{ '<|im_start|>' + message['role'] + '\\n' }}{% endif %}"
    "{% if message['reasoning_content'] %}{{ '<think>\\n' + message['reasoning_content'] + '\\n</think>\\n' }}"
    "{% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% elif message['content'] %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '\\n<tool_call>\\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{ call['function']['arguments'] | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}"
    "{% if message['role'] == 'tool' %}{{ '\\n</tool_response>' }}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if thinking or enable_thinking %}{{ '<think>\\n' }}{% endif %}{% endif %}"
)
"""The chat template: ChatML, tools and their calls as Hermes models write them, and reasoning that a switch starts."""


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
        tokens = _write_tokenizer(target)
        _write_config(target)
        _write_weights(target, tokens)
        _write_json(target / STAMP, {"version": VERSION, "seed": SEED})
        if directory.exists():
            os.rename(directory, Path(scratch) / "old")
        os.rename(target, directory)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1))


def _write_tokenizer(target: Path) -> dict[str, int]:
    """Train a byte-level BPE on the help topics that come with Python. Returns the ids by token."""
    from tokenizers import (
        AddedToken,
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
        vocab_size=VOCABULARY - 2,
        special_tokens=[_END, _START, _STOP],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    topics: dict[str, str] = pydoc_data.topics.topics
    tokenizer.train_from_iterator([topics[name] for name in sorted(topics)], trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in (_THINK, _THOUGHT)])
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
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return vocabulary


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
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": 2,
        "pad_token_id": 0,
        "use_cache": True,
    }
    _write_json(target / "config.json", config)
    _write_json(
        target / "generation_config.json", {"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": True}
    )


def _write_weights(target: Path, tokens: dict[str, int]) -> None:
    import numpy  # type: ignore[import-not-found,unused-ignore]  # in the engine's environment only
    from safetensors.numpy import save_file  # type: ignore[import-not-found]  # in the engine's environment only

    random = numpy.random.default_rng(SEED)

    def matrix(rows: int, columns: int) -> Any:
        return (random.standard_normal((rows, columns)) * 0.05).astype(numpy.float32)

    def ones(size: int) -> Any:
        return numpy.ones(size, dtype=numpy.float32)

    embeddings, head, last_norm = matrix(VOCABULARY, HIDDEN), matrix(VOCABULARY, HIDDEN), ones(HIDDEN)
    embeddings[:, _BIAS] = 1.0
    last_norm[_BIAS] = _BIAS_SCALE
    head[:, _BIAS] = 0.0
    head[[number for token, number in tokens.items() if not token.strip(_BLANKS)], _BIAS] = _RARE
    head[tokens[_THOUGHT], _BIAS] = _FREQUENT
    weights = {
        "model.embed_tokens.weight": embeddings,
        "model.norm.weight": last_norm,
        "lm_head.weight": head,
    }
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
    for name, weight in weights.items():  # no layer reads the coordinate of the bias or writes it
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[_BIAS, :] = 0.0
        elif "_proj" in name:
            weight[:, _BIAS] = 0.0
    save_file(weights, str(target / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())
