"""What a model's own config.json says of its shape: layers, heads, experts, context, and the bytes that follow.

The names are those of Hugging Face's transformers, under which every published model states them.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import (
    HFValidationError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
)

from core.errors import InvalidRequest, Unavailable
from workers.hub_errors import HUB_FAILURES

CONFIG = "config.json"
MAX_CONFIG_BYTES = 1 << 20
MAX_NUMBER = 10**9
"""Largest number that a configuration may state of its shape."""
WEIGHT_FILES = "*.safetensors"

Format = Literal["int4", "int8", "fp4", "fp8", "fp16", "bf16", "fp32"]
BYTES: dict[Format, float] = {
    "fp4": 0.5625, "int4": 0.53, "fp8": 1.0, "int8": 1.0, "fp16": 2.0, "bf16": 2.0, "fp32": 4.0,
}  # fmt: skip
"""Bytes of a weight, with its scale: FP4 has one of a byte for 16 weights, INT4 about one of two bytes for 64."""
_DTYPES: dict[str, Format] = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_LINEAR = ("linear_attention", "mamba", "mamba2", "recurrent", "conv")
"""Kinds of layers whose state does not grow with the context."""


class ModelShape(msgspec.Struct, frozen=True):
    """The shape of a decoder; counts are per layer."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    """Whether input and output embeddings are the same weights."""
    mlp: int
    """Width of the feed-forward part of a dense layer."""
    context: int
    dtype: Format
    """Number format of activations, and of weights that are not quantized."""
    weights: Format
    dense_layers: int
    """Layers without routed experts."""
    kv_layers: int
    """Layers that keep keys and values of every token."""
    experts: int = 0
    """Routed experts; 0 = a dense model."""
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_mlp: int = 0
    latent: int = 0
    """Numbers that a token leaves in the cache under multi-head latent attention; 0 = grouped-query attention."""
    attention_weights: int = 0
    """Weights of the attention."""

    @property
    def expert_weights(self) -> int:
        """Weights of all routed experts."""
        return 3 * (self.layers - self.dense_layers) * self.experts * self.hidden * self.expert_mlp

    @property
    def other_weights(self) -> int:
        """All other weights: attention, dense and shared feed-forward parts, routers, embeddings."""
        sparse = self.layers - self.dense_layers
        shared = 3 * self.hidden * self.expert_mlp * self.shared_experts + self.hidden * self.experts
        dense = 3 * self.dense_layers * self.hidden * self.mlp
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return self.layers * self.attention_weights + sparse * shared + dense + embeddings

    @property
    def active_weights(self) -> int:
        """Weights that one token is multiplied by: without the input embedding, which is looked up."""
        looked_up = 0 if self.tied else self.vocabulary * self.hidden
        used = self.expert_weights * self.experts_per_token // self.experts if self.experts else 0
        return used + self.other_weights - looked_up

    def kv_numbers(self, tensor_parallel: int) -> int:
        """Numbers that a token leaves in the cache of one GPU of so many: heads are split as far as there are any,
        latents are on every GPU."""
        if self.latent:
            return self.kv_layers * self.latent
        return 2 * self.kv_layers * self.head_dim * -(-self.kv_heads // tensor_parallel)


def read_config(directory: Path) -> dict[str, Any]:
    """The config.json of a model in a local directory. Raises InvalidRequest."""
    path = directory / CONFIG
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InvalidRequest(f"{path} is larger than {MAX_CONFIG_BYTES:,} bytes", param="weights")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}", param="weights") from None
    except ValueError:
        raise InvalidRequest(f"{path} is not JSON", param="weights") from None
    if not isinstance(found, dict):
        raise InvalidRequest(f"{path} is not a JSON object", param="weights")
    return found


def weight_bytes(directory: Path) -> int:
    """Bytes of the weights in a local directory; 0 when there are none in files of safetensors."""
    return sum(path.stat().st_size for path in directory.glob(WEIGHT_FILES))


def fetch_config(hub_id: str, revision: str | None) -> dict[str, Any]:
    """The config.json of a model on the hub; nothing else is downloaded. Blocks. Raises InvalidRequest, Unavailable."""
    try:
        stated = hf_hub_download(hub_id, CONFIG, revision=revision, dry_run=True)
        _check_size(hub_id, stated.file_size)
        with tempfile.TemporaryDirectory(prefix="penstock-config-") as scratch:  # no cache that grows
            hf_hub_download(hub_id, CONFIG, revision=stated.commit_hash, local_dir=scratch)
            return read_config(Path(scratch))
    except HFValidationError:
        raise InvalidRequest(
            f"{hub_id[:80]!r} is no name on the hub, such as ORG/NAME", param="weights"
        ) from None
    except (RepositoryNotFoundError, RemoteEntryNotFoundError) as error:
        raise InvalidRequest(
            f"the hub has no config.json of {hub_id} ({type(error).__name__})", param="weights"
        ) from None
    except HUB_FAILURES as error:
        raise Unavailable(
            f"config.json of {hub_id} could not be fetched from the hub ({type(error).__name__}): is the name right, "
            "and does this machine reach the hub? --weights DIR reads a local directory",
            code="hub_unreachable",
        ) from None


def _check_size(hub_id: str, size: int | None) -> None:
    """Raise InvalidRequest for a config.json that is too large to be one, before it is downloaded."""
    if size is None or size > MAX_CONFIG_BYTES:
        stated = "does not state how large it is" if size is None else f"states {size:,} bytes"
        raise InvalidRequest(
            f"config.json of {hub_id} is not downloaded: the hub {stated}, and it may have {MAX_CONFIG_BYTES:,}",
            param="weights",
        )


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape that a configuration states; of a model of text and images, that of its text part.

    Raises InvalidRequest with the name of what is missing or out of range.
    """
    text = config.get("text_config")
    facts = {**config, **text} if isinstance(text, dict) else dict(config)
    number = _Numbers(facts)
    layers, hidden = number("num_hidden_layers", "n_layer"), number("hidden_size", "n_embd", "d_model")
    heads = number("num_attention_heads", "n_head")
    kv_heads = number("num_key_value_heads", default=heads)
    head_dim = number("head_dim", default=hidden // heads)
    experts = number("num_local_experts", "num_experts", "n_routed_experts", default=0)
    mlp = number("intermediate_size", "n_inner", default=4 * hidden)
    latent = number("kv_lora_rank", default=0)
    dtype = _DTYPES.get(str(facts.get("dtype") or facts.get("torch_dtype") or "bfloat16"), "bf16")
    dense = number("first_k_dense_replace", default=0) if experts else layers
    architectures = facts.get("architectures")
    kinds = facts.get("layer_types")
    shape = ModelShape(
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=number("vocab_size"),
        tied=bool(facts.get("tie_word_embeddings", False)),
        mlp=mlp,
        context=number("max_position_embeddings", "n_positions", "max_sequence_length"),
        dtype=dtype,
        weights=_weight_format(facts, dtype),
        dense_layers=min(dense, layers),
        kv_layers=sum(kind not in _LINEAR for kind in kinds) if isinstance(kinds, list) else layers,
        experts=experts,
        experts_per_token=number("num_experts_per_tok", "num_experts_per_token") if experts else 0,
        shared_experts=number("n_shared_experts", default=0) if experts else 0,
        expert_mlp=number("moe_intermediate_size", default=mlp) if experts else 0,
        latent=latent + number("qk_rope_head_dim") if latent else 0,
    )
    if not 0 < shape.kv_layers <= layers or shape.experts_per_token > experts:
        raise InvalidRequest(
            f"config.json contradicts itself: {layers} layers of which {shape.kv_layers} keep a cache, "
            f"{experts} experts of which a token uses {shape.experts_per_token}",
            param="config",
        )
    weights = _latent_attention(number, shape, latent) if latent else _grouped_attention(shape)
    return msgspec.structs.replace(shape, attention_weights=weights)


class _Numbers:
    """Reads whole numbers of a configuration, each under the first of its names that is there."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts

    def __call__(self, *names: str, default: int | None = None) -> int:
        """Raises InvalidRequest when none of `names` is there and there is no default, or for no such number."""
        for name in names:
            value = self._facts.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
                raise InvalidRequest(
                    f"config.json: {name} is {str(value)[:40]}, must be a whole number up to {MAX_NUMBER:,}",
                    param="config",
                )
            if value or default == 0:
                return value
            break
        if default is None:
            raise InvalidRequest(
                f"config.json has no {names[0]} above 0, so the fit of this model cannot be computed",
                param="config",
            )
        return default


def _grouped_attention(shape: ModelShape) -> int:
    """Weights of the projections of queries, keys, values and the output."""
    return shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)


def _latent_attention(number: _Numbers, shape: ModelShape, latent: int) -> int:
    """Weights of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""
    nope, rope, value = number("qk_nope_head_dim"), number("qk_rope_head_dim"), number("v_head_dim")
    queries = number("q_lora_rank", default=0)
    wide = shape.heads * (nope + rope)
    asking = shape.hidden * queries + queries * wide if queries else shape.hidden * wide
    keys = shape.hidden * (latent + rope) + latent * shape.heads * (nope + value)
    return asking + keys + shape.heads * value * shape.hidden


def _weight_format(facts: Mapping[str, Any], dtype: Format) -> Format:
    """The number format of the weights, by `quantization_config`."""
    stated = facts.get("quantization_config")
    if not isinstance(stated, dict):
        return dtype
    words = json.dumps(stated).lower()
    if "nvfp4" in words or "mxfp4" in words or '"fp4"' in words:
        return "fp4"
    bits = next((stated[name] for name in ("bits", "weight_bits", "w_bit") if name in stated), None)
    if bits is None and '"num_bits": 4' in words:
        bits = 4
    if bits == 4 or stated.get("load_in_4bit"):
        return "int4"
    floating = "fp8" in words or "float8" in words or '"float"' in words
    return "fp8" if floating else "int8"
