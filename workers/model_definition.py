"""A model that an admin adds: its entry beside those of the catalog, made from its config.json and a kind of host."""

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from core.errors import InvalidRequest
from workers.catalog import (
    BATCHED_TOKENS_FLAG,
    ArgValue,
    Capability,
    CatalogModel,
    EngineProfile,
    Experts,
    Figure,
    HostKind,
    KvOffload,
    finish_model,
)
from workers.model_config import BYTES, ModelShape, shape_of
from workers.roofline import GPUS, Estimate, Layout, estimate

PROFILE = "added"
"""Name of the one profile of an added model."""
USUAL_SEQS, CPU_SEQS = 256, 16
MEMORY_SHARE = 0.92
"""Share of the GPU's memory where no argument says another, as the catalog's profiles have it."""
CPU_CONTEXT = 4096
"""Longest context on a machine without GPUs where no argument says another."""
_OURS = frozenset(
    {"model", "served-model-name", "host", "port", "uds", "api-key", "kv-events-config", "kv-offloading-size",
     "kv-offloading-backend", "config", "ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs", "ssl-ciphers",
     "enable-ssl-refresh"}
)  # fmt: skip
"""Arguments that Penstock sets itself, or has another field for."""
_RUNS_CODE = re.compile(
    r"trust-remote-code|middleware|.*-plugins?|worker-cls|worker-extension-cls|logits-processors|allowed-local-media-path"
)
"""Arguments by which an engine runs code, or reads files, that an admin of the platform must not bring to its hosts."""
_FETCHED = {
    "download-dir": "the agent fetches weights into the cache of the host, which HF_HUB_CACHE names",
    "hf-config-path": "engines start without the hub, and the agent fetches the model's own config.json",
}
"""Arguments by which an engine would read from where the agent does not fetch to, and why there is no need."""
_ARGUMENT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ENGINE_ENV = re.compile(
    r"(?!VLLM_API_KEY$|VLLM_PLUGINS$|VLLM_SERVER_DEV_MODE$)(VLLM|NCCL|OMP|FLASHINFER)_[A-Z0-9_]+"
)
"""Variables that a profile may set: those that tune engines."""
_GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


class ProfileFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator knows better than the roofline: parts of a profile, as the catalog writes them."""

    args: dict[str, ArgValue] = {}
    env: dict[str, str] = {}
    figures: dict[str, Figure] = {}
    kv_offload: KvOffload | None = None
    block_size: int = 64


class NewModel(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a model to add."""

    name: str
    """As customers write it."""
    config: dict[str, Any]
    """The content of its config.json."""
    host_kind: str
    gpus: int
    """Of one instance."""
    weights: str = ""
    """Name on the hub, or a directory that every host has; empty = the name."""
    revision: str | None = None
    """Of the weights on the hub."""
    args: dict[str, ArgValue] = {}
    profile: ProfileFile = ProfileFile()
    weight_bytes: int = 0
    """0 = computed from the configuration."""
    title: str = ""
    license: str = "not stated"


class Fit(msgspec.Struct, frozen=True):
    """How a model fits on its host."""

    weights_gb: str
    """Of the whole model."""
    weights_per_gpu_gb: str
    memory_per_gpu_gb: str
    """What the engine may use of a GPU; of a machine without GPUs: weights and KV cache."""
    kv_token_bytes: int
    """What a token leaves in the caches of all GPUs together."""
    kv_cache_tokens: int
    max_model_len: int
    instances: int
    """That a host runs."""


def define(hosts: Mapping[str, HostKind], new: NewModel, today: date) -> tuple[CatalogModel, Fit]:
    """The entry of a model and how it fits. Raises InvalidRequest when it does not, and for what is wrong."""
    host = hosts.get(new.host_kind)
    if host is None:
        raise InvalidRequest(
            f"there is no kind of host {new.host_kind[:80]!r}; there are: {', '.join(hosts)}",
            param="host_kind",
        )
    _check_gpus(new, host)
    shape = shape_of(new.config)
    args = {**new.args, **new.profile.args}
    check_arguments(args)
    _check_finite(args, new.profile)
    _check_environment(new)
    args, layout = _layout(new, shape, args)
    seqs = _integer(args, "max-num-seqs", USUAL_SEQS if new.gpus else CPU_SEQS)
    length = _integer(args, "max-model-len", shape.context if new.gpus else min(shape.context, CPU_CONTEXT))
    args |= {"max-num-seqs": seqs, "max-model-len": length}
    found = estimate(shape, host, layout, new.weight_bytes, seqs, today)
    figures = {**found.figures, **new.profile.figures}
    if (batched := args.pop(BATCHED_TOKENS_FLAG, None)) is not None:
        figures["max_batched_tokens"] = Figure(
            _number(batched, BATCHED_TOKENS_FLAG), "assumed", today, f"--{BATCHED_TOKENS_FLAG}, as given"
        )
    _check_room(new, found, figures["kv_cache_tokens"].value, length, layout)
    whole = new.weight_bytes or int(found.weights_per_gpu * layout.tensor_parallel)
    profile = EngineProfile(
        engine="vllm",
        host_kind=new.host_kind,
        gpus=new.gpus,
        args=args,
        figures=figures,
        env=dict(new.profile.env) if new.gpus else {"VLLM_CPU_KVCACHE_SPACE": "1", **new.profile.env},
        kv_offload=new.profile.kv_offload,
        block_size=new.profile.block_size,
    )
    model = CatalogModel(
        title=new.title or new.name,
        hub_id=new.weights or new.name,
        license=new.license,
        context_len=shape.context,
        capabilities=_capabilities(shape, args),
        weights_gb=round(whole / 1e9, 3),
        profiles={PROFILE: profile},
        experts=_experts(shape, today),
        quantization=shape.weights,
    )
    model = finish_model(f"entry of {new.name}", dict(hosts), new.name, model)
    made = model.profile()
    return model, Fit(
        weights_gb=_gb(whole),
        weights_per_gpu_gb=_gb(found.weights_per_gpu),
        memory_per_gpu_gb=_gb(found.memory_per_gpu),
        kv_token_bytes=int(figures["kv_token_bytes"].value),
        kv_cache_tokens=int(figures["kv_cache_tokens"].value),
        max_model_len=made.max_model_len,
        instances=made.instances,
    )


def check_arguments(args: Mapping[str, ArgValue | None]) -> None:
    """Raise InvalidRequest for what is no argument of an engine, or not an admin's to set."""
    for flag, value in sorted(args.items()):
        if not _ARGUMENT.fullmatch(flag):
            raise InvalidRequest(
                f"{flag[:80]!r} is no argument; write it in small letters with hyphens, as max-model-len",
                param="args",
            )
        if flag in _OURS:
            raise InvalidRequest(f"the argument {flag} is set by Penstock itself; leave it out", param="args")
        if reason := _FETCHED.get(flag):
            raise InvalidRequest(f"the argument {flag} is not possible: {reason}; leave it out", param="args")
        if _RUNS_CODE.fullmatch(flag):
            raise InvalidRequest(
                f"the argument {flag} lets the engine run code or read files of its host; only the packaged "
                "catalog may have it",
                param="args",
            )
        if isinstance(value, str) and value.startswith("-"):
            raise InvalidRequest(f"the value of {flag} begins with a hyphen: {value[:80]!r}", param="args")


def _check_finite(args: Mapping[str, ArgValue], profile: ProfileFile) -> None:
    """Raise InvalidRequest for NaN and infinity, which TOML can write and no figure can be."""
    numbers: dict[str, object] = {f"figures.{name}": figure.value for name, figure in profile.figures.items()}
    if profile.kv_offload is not None:
        numbers["kv_offload.size_gib"] = profile.kv_offload.size_gib
    for flag, value in args.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        numbers |= {f"args.{flag}.{part}".removesuffix("."): each for part, each in parts}
    for name, number in numbers.items():
        if isinstance(number, float) and not math.isfinite(number):
            raise InvalidRequest(f"{name} is {number}, must be a finite number", param="profile")


def _check_environment(new: NewModel) -> None:
    """Raise InvalidRequest for weights that read as an option, and for variables beyond an engine's own."""
    if new.weights.startswith("-"):
        raise InvalidRequest(f"weights begins with a hyphen: {new.weights[:80]!r}", param="weights")
    for name in new.profile.env:
        if not _ENGINE_ENV.fullmatch(name):
            raise InvalidRequest(
                f"a profile cannot set {name[:80]!r}; it may set VLLM_, NCCL_, OMP_ and FLASHINFER_ variables",
                param="profile",
            )


def parse_argument(text: str) -> tuple[str, ArgValue]:
    """An engine argument as NAME=VALUE, or NAME for a flag without a value. Raises InvalidRequest.

    A value is read as JSON where it is JSON (a number, true, an object), else as text.
    """
    name, mark, value = text.removeprefix("--").partition("=")
    if not name or not all(part.isalnum() for part in name.split("-")) or not name.isascii():
        raise InvalidRequest(
            f"an argument is NAME=VALUE, such as max-model-len=32768, not {text[:80]!r}", param="arg"
        )
    if not mark:
        return name, True
    try:
        return name, msgspec.convert(json.loads(value), ArgValue)
    except (ValueError, msgspec.ValidationError):
        return name, value


def parse_changes(words: Iterable[str]) -> dict[str, ArgValue | None]:
    """The arguments of NAME=VALUE words, with None for NAME=none: the argument is taken away. Raises InvalidRequest."""
    return {name: None if value == "none" else value for name, value in map(parse_argument, words)}


def read_profile(path: Path) -> ProfileFile:
    """The parts of a profile in a TOML file. Raises InvalidRequest with what is wrong in it."""
    try:
        return parse_profile(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise InvalidRequest(f"cannot read the profile {path}: {error.strerror}", param="profile") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the profile {path} is wrong: {error}", param="profile") from None


def parse_profile(content: str, name: str) -> ProfileFile:
    """The parts of a profile in the TOML of the file `name`. Raises InvalidRequest with what is wrong in it."""
    try:
        return msgspec.convert(tomllib.loads(content), ProfileFile)
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"the profile {name} is wrong: {error}", param="profile") from None


def _check_gpus(new: NewModel, host: HostKind) -> None:
    if not 0 <= new.gpus <= host.gpus or (host.gpus > 0 and new.gpus == 0):
        raise InvalidRequest(
            f"gpus is {new.gpus}, but a {new.host_kind} has {host.gpus}"
            + (", of which an instance needs at least one" if host.gpus else ""),
            param="gpus",
        )
    if new.gpus and host.gpu not in GPUS:
        raise InvalidRequest(
            f"nothing is known of the speed of {host.gpu}; known are: {', '.join(GPUS)}", param="host_kind"
        )


def _layout(
    new: NewModel, shape: ModelShape, args: dict[str, ArgValue]
) -> tuple[dict[str, ArgValue], Layout]:
    """The arguments with the layout that follows from the GPUs, and the layout."""
    ranks = _integer(args, "data-parallel-size", 1)
    tensor = _integer(args, "tensor-parallel-size", max(new.gpus // ranks, 1))
    if new.gpus and tensor * ranks != new.gpus:
        raise InvalidRequest(
            f"tensor-parallel-size is {tensor}, data-parallel-size is {ranks}, but gpus is {new.gpus}",
            param="gpus",
        )
    if shape.heads % tensor:
        raise InvalidRequest(
            f"{shape.heads} attention heads cannot be split over {tensor} GPUs; give tensor-parallel-size and "
            "data-parallel-size, whose product is gpus",
            param="gpus",
        )
    if new.gpus:
        args = {**args, "tensor-parallel-size": tensor}
        args.setdefault("gpu-memory-utilization", MEMORY_SHARE)
    if new.revision:
        args = {**args, "revision": new.revision}
    share = args.get("gpu-memory-utilization", MEMORY_SHARE)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise InvalidRequest(
            f"gpu-memory-utilization is {share}, must be above 0 and at most 1", param="args"
        )
    stated = str(args.get("kv-cache-dtype", "auto"))
    kv_bytes = BYTES[shape.dtype] if stated == "auto" else 1.0 if "fp8" in stated else 2.0
    expert_parallel = args.get("enable-expert-parallel") is True
    args.setdefault("enable-prompt-tokens-details", True)
    return args, Layout(new.gpus, tensor, ranks, expert_parallel, kv_bytes, float(share))


def _check_room(new: NewModel, found: Estimate, tokens: float, length: int, layout: Layout) -> None:
    """Raise InvalidRequest unless a sequence of `length` tokens fits into the KV cache of a rank."""
    if tokens >= length * layout.ranks:
        return
    where = (
        f"weights take {_gb(found.weights_per_gpu)} of {_gb(found.memory_per_gpu)} GB a GPU"
        if new.gpus
        else "the KV cache has 1 GiB"
    )
    raise InvalidRequest(
        f"{new.name} does not fit on {new.gpus} GPUs of {new.host_kind}: {where}, which leaves room for "
        f"{int(tokens) // layout.ranks:,} tokens of KV cache, and one request may have {length:,}. Use more GPUs, "
        "kv-cache-dtype=fp8, or a smaller max-model-len",
        param="gpus",
    )


def _capabilities(shape: ModelShape, args: Mapping[str, ArgValue]) -> list[Capability]:
    """What the arguments and the architecture offer. Raises InvalidRequest for a model that generates nothing."""
    if args.get("runner") == "pooling":
        return ["embeddings"]
    if shape.architecture and not shape.architecture.endswith(_GENERATES):
        raise InvalidRequest(
            f"{shape.architecture} generates no text; a model of embeddings needs runner=pooling",
            param="config",
        )
    found: list[Capability] = ["chat", "completions", "json", "logprobs"]
    if "reasoning-parser" in args:
        found.append("reasoning")
    if "tool-call-parser" in args:
        found.append("tools")
    return found


def _experts(shape: ModelShape, today: date) -> Experts | None:
    if not shape.experts:
        return None
    return Experts(shape.experts, shape.experts_per_token, "published", today, "config.json")


def _integer(args: Mapping[str, ArgValue], name: str, usual: int) -> int:
    value = args.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 10**9:
        raise InvalidRequest(f"{name} is {value}, must be a whole number above 0", param="args")
    return value


def _number(value: ArgValue, name: str) -> float:
    return float(_integer({name: value}, name, 1))


def _gb(count: float) -> str:
    return f"{count / 1e9:.3g}"
