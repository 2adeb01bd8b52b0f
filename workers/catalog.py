"""The catalog: models, how to start an engine for each, its capacity, and prices.

Read from catalog.toml or a file of the operator's. Every capacity figure and price has its source and date. An invalid
file is refused with the place and the reason.
"""

import json
import string
import tomllib
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Literal

import msgspec

from core.errors import InvalidRequest
from core.money import per_mtok_to_pico_per_token, usd_to_pico
from workers.catalog_extends import resolve
from workers.kv_endpoints import KvEndpoints
from workers.kv_links import PCIE, token_s
from workers.ranks import MAX_RANKS
from workers.service_level import TargetFigures, Tier, service_level, target_problem, wake_deadline_problem
from workers.wire import USUAL_BATCHED_TOKENS, Capacity, Targets

DEFAULT_CATALOG = Path(__file__).with_name("catalog.toml")

ArgValue = bool | int | float | str | dict[str, bool | int | float | str]
"""Value of a command-line flag: `true` = the flag without a value, a table = JSON."""

Capability = Literal["chat", "completions", "embeddings", "reasoning", "tools", "json", "logprobs"]
"""What requests may ask of a model; gateway/abilities.py refuses the others."""

_INTEGER_FIGURES = frozenset({"max_num_seqs", "kv_cache_tokens", "max_batched_tokens"})
_NEEDED_FIGURES = frozenset(
    {"prefill_tokens_per_s", "step_base_s", "step_per_seq_s", "max_num_seqs", "kv_cache_tokens"}
)
_OPTIONAL_FIGURES = frozenset(
    {
        "step_per_kv_token_s",
        "step_experts_s",
        "step_drafts_s",
        "prefill_pair_s",
        "request_s",
        "accept_per_step",
        "max_batched_tokens",
        "kv_token_bytes",
        "kv_host_token_bytes",
    }
)
_POSITIVE_FIGURES = _NEEDED_FIGURES | {
    "accept_per_step",
    "max_batched_tokens",
    "kv_token_bytes",
    "kv_host_token_bytes",
}
BATCHED_TOKENS_FLAG = "max-num-batched-tokens"
"""The engine's flag that follows from the figure `max_batched_tokens`."""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One capacity figure and its source."""

    value: float
    basis: Literal["published", "measured", "computed", "assumed"]
    date: date
    source: str


class HostPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Price of a host per hour, as a decimal string in USD."""

    usd_per_hour: str
    date: date
    source: str


class HostKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of machine; `price` is absent when none is public."""

    gpus: int
    gpu: str
    gpu_memory_gb: int
    price: HostPrice | None = None
    ram_gb: Figure | None = None
    """Host memory in GB, for KV caches behind the engines' own and the weights of sleeping replicas."""
    own: bool = False
    """Whether nobody bills it by the hour: it is the operator's machine, or somebody else's. The autoscaler never
    destroys such a host, and counts no cost."""


class ListPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """List price in USD per million tokens, decimal strings."""

    input: str
    cached_input: str
    output: str
    reasoning: str
    date: date
    source: str


class Experts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The routed experts of a mixture, from the model's configuration."""

    count: int
    """Routed experts per layer."""
    per_token: int
    """Routed experts that one token uses per layer."""
    basis: Literal["published", "measured", "computed", "assumed"]
    date: date
    source: str


class KvOffload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """KV cache that the engine keeps in host memory behind its own. docs/results/kv-tiers.md says where it pays."""

    size_gib: float
    """Host memory for it, of all GPUs of the engine together. It is not there for the weights of sleeping replicas: the
    engine takes it when it starts and keeps it while it sleeps."""
    backend: Literal["native", "lmcache"] = "native"
    """vLLM's own offloading, or an LMCache server on the host, which the operator runs with as much memory."""


class EngineProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one engine instance is started, and its capacity."""

    engine: Literal["vllm"]
    host_kind: str
    gpus: int
    """GPUs of one instance; a host runs as many as its GPUs allow."""
    args: dict[str, ArgValue]
    figures: dict[str, Figure]
    name: str = ""
    extends: str = ""
    """The profile of the model that it is like but for what it states itself; it has that one's values already."""
    hub_id: str = ""
    """Name of the weights on the hub; empty = the model's."""
    weights_gb: float = 0.0
    """Size of the weights in GB; 0 = the model's."""
    env: dict[str, str] = {}
    kv_offload: KvOffload | None = None
    """None = the engine keeps its KV cache on the GPUs only. Needs the figure `kv_token_bytes`, and the `ram_gb` of
    its kind of host."""
    sweep: str = ""
    """Name of the sweep that the figures of its plain steps (without speculation) are fitted to and checked against by
    `penstock sim validate`; empty = they are not validated, and are shown so."""
    block_size: int = 64
    """Tokens per KV block of the simulated engine."""
    instances: int = 1
    """Instances that fit on one host; load_catalog computes it from the GPUs."""
    max_model_len: int = 0
    """Most tokens of prompt and output together; load_catalog sets it to the flag, or else the model's context."""
    expert_share: float = 0.0
    """Share of a layer's experts that one token uses; load_catalog computes it from the model's experts."""

    @property
    def capacity(self) -> Capacity:
        """The figures as the scheduler uses them. The time of drafting is part of every step."""
        values = {name: figure.value for name, figure in self.figures.items()}
        return Capacity(
            prefill_tokens_per_s=values["prefill_tokens_per_s"],
            step_base_s=values["step_base_s"] + values.get("step_drafts_s", 0.0),
            step_per_seq_s=values["step_per_seq_s"],
            step_per_kv_token_s=values.get("step_per_kv_token_s", 0.0),
            step_experts_s=values.get("step_experts_s", 0.0),
            expert_share=self.expert_share,
            prefill_pair_s=values.get("prefill_pair_s", 0.0),
            dp_ranks=self.dp_ranks,
            request_s=values.get("request_s", 0.0),
            accept_per_step=values.get("accept_per_step", 1.0),
            draft_tokens=self._draft_tokens,
            max_num_seqs=int(values["max_num_seqs"]),
            max_batched_tokens=int(values.get("max_batched_tokens", USUAL_BATCHED_TOKENS)),
            by_priority=self.args.get("scheduling-policy") == "priority",
            kv_cache_tokens=int(values["kv_cache_tokens"]),
            host_kv_tokens=self._host_kv_tokens,
            kv_load_s=token_s(values["kv_token_bytes"], self.gpus, PCIE) if self.kv_offload else 0.0,
            max_model_len=self.max_model_len,
            gpus=self.gpus,
            sweep=self.sweep,
        )

    @property
    def plain(self) -> Capacity:
        """The capacity of the same engine without speculation and KV cache in host memory, as sweeps measure it."""
        return msgspec.structs.replace(
            self.capacity,
            step_base_s=self.figures["step_base_s"].value,
            accept_per_step=1.0,
            draft_tokens=0,
            host_kv_tokens=0,
            kv_load_s=0.0,
        )

    @property
    def dp_ranks(self) -> int:
        """Ranks of attention data parallelism, by the engine's flag."""
        ranks = self.args.get("data-parallel-size", 1)
        return ranks if isinstance(ranks, int) else 0

    def replicas_on(self, gpus: int) -> int:
        """Replicas for which a host of `gpus` GPUs has room: at least one, and one that needs no GPU."""
        return max(1, gpus // self.gpus) if self.gpus else 1

    def layout(self, instances: int) -> str:
        """How a host is divided: `4 x TP2`, or `DP8 EP` for attention data parallelism with the experts spread."""
        if not self.gpus:
            return "CPU"
        tensor, ranks = self.args.get("tensor-parallel-size", 1), self.dp_ranks
        parts = [f"TP{tensor}"] if tensor != 1 or ranks == 1 else []
        parts += [f"DP{ranks}"] if ranks > 1 else []
        parts += ["EP"] if self.args.get("enable-expert-parallel") else []
        return (f"{instances} x " if instances > 1 else "") + " ".join(parts)

    @property
    def tier_gb(self) -> float:
        """Host memory that one engine keeps KV caches in, in GB (1e9 bytes); 0 = none."""
        return self.kv_offload.size_gib * 2**30 / 1e9 if self.kv_offload is not None else 0.0

    @property
    def _host_kv_tokens(self) -> int:
        """Tokens whose KV fits into the host memory that the profile gives to it.

        `kv_host_token_bytes` is what vLLM's own offloading keeps of a token, where that is less than all GPUs have.
        """
        if self.kv_offload is None:
            return 0
        once = self.figures.get("kv_host_token_bytes") if self.kv_offload.backend == "native" else None
        return int(self.kv_offload.size_gib * 2**30 / (once or self.figures["kv_token_bytes"]).value)

    @property
    def _draft_tokens(self) -> int:
        """Draft tokens per step in the engine's speculative-config; 0 without one."""
        speculation = self.args.get("speculative-config")
        drafts = speculation.get("num_speculative_tokens", 0) if isinstance(speculation, dict) else 0
        return int(drafts)

    def command_line(
        self,
        model: "CatalogModel",
        port: int,
        *,
        host: str = "127.0.0.1",
        weights: str | None = None,
        kv: KvEndpoints | None = None,
    ) -> list[str]:
        """The engine's full command line.

        `weights`, a directory, replaces the name on the hub. With `kv` the engine publishes KV events. The API key is
        passed as VLLM_API_KEY instead, because process lists show command lines.
        """
        names = {"model": model.name}
        line = ["vllm", "serve", weights or self.hub_id or model.hub_id, "--served-model-name", model.name]
        for flag, value in self.args.items():
            line += _flag(flag, value, names)
        if (batched := self.figures.get("max_batched_tokens")) is not None:
            line += _flag(BATCHED_TOKENS_FLAG, int(batched.value), names)
        if (offload := self.kv_offload) is not None:
            line += _flag("kv-offloading-size", offload.size_gib / self.dp_ranks, names)  # of each rank
            line += _flag("kv-offloading-backend", offload.backend, names)
        if kv is not None:
            line += _flag("kv-events-config", _kv_config(model, kv), names)
        return [*line, "--host", host, "--port", str(port)]


class CatalogModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model with its profiles; the first profile is the default."""

    title: str
    hub_id: str
    license: str
    context_len: int
    capabilities: list[Capability]
    weights_gb: float
    profiles: dict[str, EngineProfile]
    list_price: ListPrice | None = None
    """None = an admin sets its price; until then its requests are refused."""
    name: str = ""
    max_output_tokens: int = 0
    """Limit of output tokens for requests without max_tokens, from the model's card; 0 in the file = the rest of its
    context, as which a loaded catalog has `context_len`."""
    template_switches: dict[str, list[bool | int | str]] = {}
    """Variables of the chat template that customers may set, and the values that each may have."""
    embedding_dimensions: int = 0
    """Numbers of a vector, of a model that embeds; 0 = not known: an answer that is too large is then refused only
    when it arrives."""
    experts: Experts | None = None
    """None for a dense model."""
    targets: dict[Tier, TargetFigures] = {}
    """Promised times by tier, a choice of the operator's; see `service_level`."""
    region: str = "local"
    quantization: Literal["int4", "int8", "fp4", "fp6", "fp8", "fp16", "bf16", "fp32"] | None = None
    """Number format of the weights; None = not known."""
    toy: bool = False
    """Whether the weights are random: the engine is real, the output is meaningless."""
    prefix: Literal["mirrored", "exact"] = "mirrored"
    """How prompts are matched to prefix caches: by a mirror of the routed prompts, or by the engine's KV events on
    tokens. docs/adr/0014 has measurements and the reason for the default."""
    wake_deadline_s: float | None = None
    """Longest wait, in seconds, of requests while a replica wakes or its host is created; None = as
    PENSTOCK_WAKE_DEADLINE_S says. `penstock models set-wake-deadline` changes it."""

    @property
    def service_level(self) -> Targets:
        """The promised times, as live scheduler and simulation use them."""
        return service_level(self.targets)

    @property
    def tool_parser(self) -> str:
        """The engine's parser of tool calls in the default profile; empty = none."""
        return str(self.profile().args.get("tool-call-parser", ""))

    def profile(self, name: str = "") -> EngineProfile:
        """The profile `name`, or the default one. Raises InvalidRequest with the known names."""
        if not name:
            return next(iter(self.profiles.values()))
        if name not in self.profiles:
            raise InvalidRequest(
                f"model {self.name} has no profile {name!r}; it has: {', '.join(self.profiles)}",
                param="profile",
            )
        return self.profiles[name]


class LadderFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds until a replica is ready from each state of the autoscaler's ladder, and host memory that it holds."""

    sleep_1_wake_s: Figure
    """Seconds to wake from sleep level 1: weights in host memory."""
    sleep_2_wake_s: Figure
    """Seconds to wake from sleep level 2: weights dropped, process alive."""
    stopped_wake_s: Figure
    """Seconds of a cold start."""
    create_s: Figure
    """Seconds from requesting a droplet until its engine starts; a cold start follows."""
    sleep_1_host_share: Figure
    """Host memory of a replica at sleep level 1, as a share of the model's weights."""
    sleep_2_host_gb: Figure
    """Host memory of a replica at sleep level 2, in GB."""


class Catalog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a catalog file."""

    hosts: dict[str, HostKind]
    models: dict[str, CatalogModel]
    ladder: LadderFigures | None = None

    @property
    def host_prices(self) -> dict[str, HostPrice]:
        """Price by host kind, for kinds with a price."""
        return {kind: host.price for kind, host in self.hosts.items() if host.price is not None}

    def gpu_of(self, kind: str) -> str:
        """The class of GPU of a kind of hosts; empty = it has none, or is not known."""
        return self.hosts[kind].gpu if kind in self.hosts else ""

    def model(self, name: str) -> CatalogModel:
        """The model `name`. Raises InvalidRequest with the known names."""
        if name not in self.models:
            raise InvalidRequest(
                f"the catalog has no model {name!r}; it has: {', '.join(sorted(self.models))}", param="model"
            )
        return self.models[name]


def load_catalog(path: Path | None = None) -> Catalog:
    """The catalog in `path`; None = the one that comes with Penstock.

    Raises InvalidRequest with the place in the file and what is wrong there.
    """
    source = path or DEFAULT_CATALOG
    try:
        content = resolve(source, tomllib.loads(source.read_text(encoding="utf-8")))
        raw = msgspec.convert(content, Catalog)
    except OSError as error:
        raise InvalidRequest(f"cannot read the catalog {source}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"the catalog {source} is not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the catalog {source} is wrong: {error}") from None
    for kind, host in raw.hosts.items():
        if host.price is not None:
            _check(source, f"hosts.{kind}.price.usd_per_hour", usd_to_pico, host.price.usd_per_hour)
    models = {name: finish_model(source, raw.hosts, name, model) for name, model in raw.models.items()}
    return Catalog(hosts=raw.hosts, models=models, ladder=raw.ladder)


def finish_model(source: object, hosts: dict[str, HostKind], name: str, model: CatalogModel) -> CatalogModel:
    """A model with all that follows from its stated facts; `source` is where it is from, for messages.

    Raises InvalidRequest with the place and what is wrong there.
    """
    where = f"models.{name}"
    if not model.profiles:
        raise InvalidRequest(f"the catalog {source} is wrong: {where} has no profile")
    longest = model.max_output_tokens or model.context_len
    if not 0 < longest <= model.context_len:
        raise InvalidRequest(
            f"the catalog {source} is wrong: {where}.max_output_tokens is {longest}, "
            f"must be between 1 and context_len ({model.context_len})"
        )
    experts = model.experts
    if experts is not None and not (0 < experts.per_token <= experts.count and experts.source.strip()):
        raise InvalidRequest(
            f"the catalog {source} is wrong: {where}.experts needs 0 < per_token <= count, and a source"
        )
    if (problem := wake_deadline_problem(model.wake_deadline_s)) is not None:
        raise InvalidRequest(f"the catalog {source} is wrong: {where}.{problem}")
    for tier, figures in model.targets.items():
        if (problem := target_problem(figures.ttft_s, figures.tpot_s)) is not None:
            raise InvalidRequest(f"the catalog {source} is wrong: {where}.targets.{tier}: {problem}")
    for kind in ("input", "cached_input", "output", "reasoning") if model.list_price is not None else ():
        price: str = getattr(model.list_price, kind)
        _check(source, f"{where}.list_price.{kind}", per_mtok_to_pico_per_token, price)
    profiles = {
        key: _finish_profile(source, hosts, model, f"{where}.profiles.{key}", key, profile)
        for key, profile in model.profiles.items()
    }
    return msgspec.structs.replace(model, name=name, profiles=profiles, max_output_tokens=longest)


def _finish_profile(
    source: object,
    hosts: dict[str, HostKind],
    model: CatalogModel,
    where: str,
    name: str,
    profile: EngineProfile,
) -> EngineProfile:
    place = f"{where} (extends {profile.extends})" if profile.extends else where

    def refuse(reason: str) -> InvalidRequest:
        return InvalidRequest(f"the catalog {source} is wrong: {place}{reason}")

    host = hosts.get(profile.host_kind)
    if host is None:
        raise refuse(f".host_kind is {profile.host_kind!r}, which is not among [hosts]")
    if not 0 <= profile.gpus <= host.gpus or (host.gpus > 0 and profile.gpus == 0):
        raise refuse(f".gpus is {profile.gpus}, but {profile.host_kind} has {host.gpus}")
    missing = _NEEDED_FIGURES - profile.figures.keys()
    unknown = profile.figures.keys() - _NEEDED_FIGURES - _OPTIONAL_FIGURES
    if missing or unknown:
        raise refuse(f".figures: missing {sorted(missing)}, unknown {sorted(unknown)}")
    for key, figure in profile.figures.items():
        if figure.value < 0 or (key in _POSITIVE_FIGURES and figure.value == 0):
            raise refuse(f".figures.{key} is {figure.value}, must be above zero")
        if key in _INTEGER_FIGURES and figure.value != int(figure.value):
            raise refuse(f".figures.{key} is {figure.value}, must be a whole number")
        if not figure.source.strip():
            raise refuse(f".figures.{key} has no source")
    if (problem := _tier_problem(model, profile, host)) is not None:
        raise refuse(f".kv_offload {problem}")
    if BATCHED_TOKENS_FLAG in profile.args:
        raise refuse(
            f".args.{BATCHED_TOKENS_FLAG}: state .figures.max_batched_tokens instead, with its source"
        )
    experts = model.experts
    if "step_experts_s" in profile.figures and experts is None:
        raise refuse(".figures.step_experts_s needs the model's experts")
    tensor_parallel, ranks = profile.args.get("tensor-parallel-size", 1), profile.dp_ranks
    if not 0 < ranks <= MAX_RANKS:
        raise refuse(f".args.data-parallel-size must be a number between 1 and {MAX_RANKS}")
    if profile.gpus and not (isinstance(tensor_parallel, int) and tensor_parallel * ranks == profile.gpus):
        times = f", data-parallel-size is {ranks}" if ranks > 1 else ""
        raise refuse(f": tensor-parallel-size is {tensor_parallel}{times}, but gpus is {profile.gpus}")
    batched, seats = profile.figures.get("max_batched_tokens"), profile.figures["max_num_seqs"].value / ranks
    if batched is not None and batched.value < seats:
        raise refuse(
            f".figures.max_batched_tokens is {batched.value:g}, which has no room for the {seats:g} sequences of a rank"
        )
    for flag, value in profile.args.items():
        for text in value.values() if isinstance(value, dict) else [value]:
            _check_placeholders(refuse, flag, text)
    flag_len = profile.args.get("max-model-len", model.context_len)
    length = int(flag_len) if isinstance(flag_len, int) else 0
    if not 0 < length <= model.context_len:
        raise refuse(
            f".args.max-model-len is {flag_len}, must be between 1 and context_len ({model.context_len})"
        )
    if length * ranks > profile.figures["kv_cache_tokens"].value:
        raise refuse(f".figures.kv_cache_tokens holds less than one sequence of {length} tokens a rank")
    return msgspec.structs.replace(
        profile,
        name=name,
        instances=profile.replicas_on(host.gpus),
        max_model_len=length,
        expert_share=experts.per_token / experts.count if experts is not None else 0.0,
    )


def _tier_problem(model: CatalogModel, profile: EngineProfile, host: HostKind) -> str | None:
    """What is wrong with a profile's KV cache in host memory, beside the weights of its engines when they sleep."""
    offload = profile.kv_offload
    if offload is None:
        return None
    if not (offload.size_gib > 0 and "kv_token_bytes" in profile.figures):
        return "needs a size_gib above zero, and .figures.kv_token_bytes"
    if not profile.gpus or host.ram_gb is None:
        return f"needs GPUs, and the ram_gb of [hosts.{profile.host_kind}] that it is taken from"
    engines, ram = profile.replicas_on(host.gpus), host.ram_gb.value
    tiers = engines * profile.tier_gb
    asleep = (profile.weights_gb or model.weights_gb) if profile.args.get("enable-sleep-mode") else 0.0
    if tiers + engines * asleep <= ram:
        return None
    beside = f" beside {engines * asleep:.0f} GB of weights at sleep level 1" if asleep else ""
    return (
        f"of {engines} engines takes {tiers:.0f} GB{beside}, and {profile.host_kind} has {ram:.0f} GB; state a smaller "
        "size_gib" + (", or args.enable-sleep-mode = false" if asleep else "")
    )


def _kv_config(model: "CatalogModel", kv: KvEndpoints) -> dict[str, bool | int | float | str]:
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": kv.events,
        "replay_endpoint": kv.replay,
        "topic": model.name,
    }


def _check_placeholders(refuse: Callable[[str], InvalidRequest], flag: str, text: object) -> None:
    if isinstance(text, str) and "{" in text:
        names = {field for _, field, _, _ in string.Formatter().parse(text) if field is not None}
        if names - {"model"}:
            raise refuse(f".args.{flag}: unknown placeholder in {text!r}")


def _check(source: object, where: str, parse: Callable[[str], int], text: str) -> None:
    try:
        parse(text)
    except ValueError as error:
        raise InvalidRequest(f"the catalog {source} is wrong: {where}: {error}") from None


def _flag(flag: str, value: ArgValue, names: dict[str, str]) -> list[str]:
    if isinstance(value, bool):
        return [f"--{flag}"] if value else []
    if isinstance(value, dict):
        filled = {key: _fill(item, names) for key, item in value.items()}
        return [f"--{flag}", json.dumps(filled, separators=(",", ":"))]
    if isinstance(value, float):
        return [f"--{flag}", str(Decimal(str(value)))]
    return [f"--{flag}", str(_fill(value, names))]


def _fill(value: bool | int | float | str, names: dict[str, str]) -> bool | int | float | str:
    return value.format(**names) if isinstance(value, str) and "{" in value else value
