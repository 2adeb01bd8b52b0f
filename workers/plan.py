"""Plans the replicas of this host from settings, catalog and GPUs; pure functions."""

from fractions import Fraction
from typing import Literal

import msgspec

from core.errors import InvalidRequest
from workers.catalog import Catalog, CatalogModel, EngineProfile
from workers.engine_spec import EngineSpec, profile_of
from workers.machine import Gpus
from workers.wire import Capacity, Targets

TINY = "penstock/tiny"
SMALL = "qwen2.5-0.5b"
"""The default model without a GPU when the hub is reachable."""
_GPU_DEFAULTS = ("llama-3.3-70b", SMALL)

EXTERNAL_TARGETS = Targets(tpot_s=60.0)
"""Targets of an external engine where no admin has set any: no batch of it is too slow."""
MAX_KV_TOKENS = 10**9
"""KV cache that an engine that does not report its own is taken to have at most, in tokens."""

EngineKind = Literal["vllm", "sim", "external"]


class ReplicaPlan(msgspec.Struct, frozen=True):
    """One replica to run; `share` is its part of the host, 0 to 1."""

    replica_id: str
    model: CatalogModel
    profile: EngineProfile
    engine: EngineKind
    capacity: Capacity
    share: Fraction
    gpu_ids: tuple[str, ...] = ()
    targets: Targets = Targets()
    spec: EngineSpec = EngineSpec()
    """Version of its engine, which is part of `profile` already."""

    @property
    def model_name(self) -> str:
        """The name under which the engine serves the model."""
        return self.model.name

    def of_version(self, spec: EngineSpec) -> "ReplicaPlan":
        """This replica, of the base version, with the engine of `spec`. Raises InvalidRequest as `profile_of`."""
        profile = profile_of(self.model, self.profile, spec)
        return msgspec.structs.replace(self, profile=profile, capacity=profile.capacity, spec=spec)

    @property
    def embeds(self) -> bool:
        """Whether the model gives embeddings, and nothing else."""
        return self.model.capabilities == ["embeddings"]


class ExternalPlan(msgspec.Struct, frozen=True):
    """One model of an external engine; `share` is its part of the host, 0 to 1."""

    replica_id: str
    model_name: str
    capacity: Capacity
    share: Fraction
    targets: Targets
    engine: EngineKind = "external"
    embeds: bool = False


class HostPlan(msgspec.Struct, frozen=True):
    """All replicas to run on this host."""

    host_kind: str
    gpus: int
    replicas: tuple[ReplicaPlan, ...]
    engine_urls: tuple[str, ...] = ()
    """Base URLs of external engines; their replicas follow from what the engines list."""


def plan_sim(
    catalog: Catalog, host_id: str, model_name: str, replicas: int, *, profile_name: str = "", kind: str = ""
) -> HostPlan:
    """Simulated replicas; the host counts as a machine of `kind`, or of the kind that the profile needs, with its cost.

    `replicas` 0 = as many as such a machine has GPUs for. Without `profile_name` the first profile for the GPUs of
    `kind`, else the model's first. Raises InvalidRequest when there is no such model or profile.
    """
    model = catalog.model(model_name or TINY)
    profile = model.profile(profile_name)
    host = catalog.hosts.get(kind)
    if host is not None and not profile_name:
        profile = fitting_profile(catalog, model, Gpus(("",) * host.gpus, host.gpu)) or profile
    count = replicas or profile.replicas_on((host or catalog.hosts[profile.host_kind]).gpus)
    return _host(host_id, model, profile, "sim", count, profile.gpus * count, profile.host_kind, [])


def plan_external(
    replica_id: str, model_name: str, *, max_num_seqs: int, context_len: int, share: Fraction
) -> ExternalPlan:
    """One model of an external engine, whose speeds and KV cache are not stated.

    The speeds are assumptions until the agent has measured them (`Capacity.assumed`). Neither they nor a
    target per token limit the batch: `max_num_seqs` alone does, and the engine's own KV figures if it reports any.
    """
    return ExternalPlan(
        replica_id=replica_id,
        model_name=model_name,
        capacity=Capacity(
            prefill_tokens_per_s=50_000.0,
            step_base_s=0.03,
            step_per_seq_s=0.0002,
            max_num_seqs=max_num_seqs,
            kv_cache_tokens=min(2 * max_num_seqs * context_len, MAX_KV_TOKENS),
            max_model_len=context_len,
            assumed=True,
        ),
        share=share,
        targets=EXTERNAL_TARGETS,
    )


def plan_vllm(
    catalog: Catalog,
    host_id: str,
    model_name: str,
    replicas: int,
    gpus: Gpus,
    *,
    hub_answers: bool,
    profile_name: str = "",
) -> HostPlan:
    """Replicas on the host's GPUs, or on the CPU when it has none. Raises InvalidRequest when they do not fit.

    `replicas` 0 = as many as there are GPUs for, and one without GPUs. `hub_answers` decides the default model of a
    host without GPUs. Without `profile_name` the profile is one that fits.
    """
    if not gpus.ids:
        name = model_name or (SMALL if hub_answers else TINY)
        model = catalog.model(name)
        profiles = [profile for profile in model.profiles.values() if profile.gpus == 0]
        if not profiles:
            need = min(profile.gpus for profile in model.profiles.values())
            raise InvalidRequest(
                f"model {name} needs {need} GPUs and this machine has none; without one there are "
                f"{TINY} and {SMALL}, and `--engine sim` simulates any model",
                param="model",
            )
        chosen = model.profile(profile_name) if profile_name else profiles[0]
        if chosen.gpus:
            raise InvalidRequest(
                f"profile {chosen.name} of {name} needs {chosen.gpus} GPUs and this machine has none; without one "
                f"it has: {', '.join(each.name for each in profiles)}",
                param="profile",
            )
        return _host(host_id, model, chosen, "vllm", max(1, replicas), 0, "local-cpu", [])
    for name in [model_name] if model_name else _GPU_DEFAULTS:
        model = catalog.model(name)
        profile = model.profile(profile_name) if profile_name else fitting_profile(catalog, model, gpus)
        if profile is not None:
            break
    else:
        need = min(
            profile.gpus for profile in catalog.model(model_name or _GPU_DEFAULTS[0]).profiles.values()
        )
        raise InvalidRequest(
            f"model {model_name} needs {need} GPUs, this machine has {len(gpus.ids)}", param="model"
        )
    each = max(profile.gpus, 1)
    if profile.dp_ranks > each:
        raise InvalidRequest(
            f"profile {profile.name} of {model.name} has {profile.dp_ranks} ranks for a machine without GPUs, and this "
            f"machine has {len(gpus.ids)}, of which each rank would need one; choose another profile of the model: "
            f"{', '.join(other.name for other in model.profiles.values() if other.dp_ranks <= max(other.gpus, 1))}",
            param="profile",
        )
    replicas = replicas or profile.replicas_on(len(gpus.ids))
    if each * replicas > len(gpus.ids):
        raise InvalidRequest(
            f"{replicas} replicas of {model.name} need {each * replicas} GPUs, this machine has {len(gpus.ids)}",
            param="replicas",
        )
    kind = host_kind_of(catalog, gpus) or profile.host_kind
    groups = [gpus.ids[start : start + each] for start in range(0, each * replicas, each)]
    return _host(host_id, model, profile, "vllm", replicas, len(gpus.ids), kind, groups)


def fitting_profile(catalog: Catalog, model: CatalogModel, gpus: Gpus) -> EngineProfile | None:
    """The first profile for this kind of GPU, else the first that needs no more GPUs than there are."""
    enough = [profile for profile in model.profiles.values() if profile.gpus <= len(gpus.ids)]
    matching = [profile for profile in enough if catalog.hosts[profile.host_kind].gpu == gpus.kind]
    return next(iter(matching or enough), None)


def host_kind_of(catalog: Catalog, gpus: Gpus) -> str | None:
    """The catalog's first kind of host with these GPUs, and as many; None when there is none."""
    kinds = [
        kind for kind, host in catalog.hosts.items() if host.gpu == gpus.kind and host.gpus == len(gpus.ids)
    ]
    return kinds[0] if kinds else None


def _host(
    host_id: str,
    model: CatalogModel,
    profile: EngineProfile,
    engine: EngineKind,
    replicas: int,
    gpus: int,
    kind: str,
    groups: list[tuple[str, ...]],
) -> HostPlan:
    slug = model.name.rsplit("/", 1)[-1]
    each = max(profile.gpus, 1)
    share = Fraction(each, gpus) if gpus else Fraction(1, replicas)
    plans = tuple(
        ReplicaPlan(
            replica_id=f"{host_id}/{slug}-{number}",
            model=model,
            profile=profile,
            engine=engine,
            capacity=profile.capacity,
            share=share,
            gpu_ids=groups[number] if groups else (),
            targets=model.service_level,
        )
        for number in range(replicas)
    )
    return HostPlan(kind, gpus, plans)
