"""Several models on one host: which GPUs each of them may use, and the plan of their replicas. Pure.

The setting `model` names them, separated by commas: `a,b` gives both the first GPUs of the host, `a[0-3],b[4-7]` GPUs
of their own. Of replicas with the same GPUs one is awake; the scheduler decides which
(scheduler/core/autoscale/claims.py).
"""

import re
from collections import Counter
from fractions import Fraction

import msgspec

from core.errors import InvalidRequest
from workers.catalog import Catalog, CatalogModel, EngineProfile
from workers.machine import Gpus
from workers.plan import EngineKind, HostPlan, ReplicaPlan, fitting_profile, host_kind_of

_PLACED = re.compile(r"([^\[\],]+)(?:\[(\d+)(?:-(\d+))?\])?")


def is_shared(text: str) -> bool:
    """Whether a setting `model` is to be read by `parse_models`: it names several models, or GPUs."""
    return "," in text or "[" in text


class PlacedModel(msgspec.Struct, frozen=True):
    """A model of a host, and its part of the GPUs."""

    name: str
    first: int = 0
    last: int | None = None
    """Numbers of its GPUs; None = to the last one."""


def parse_models(text: str) -> tuple[PlacedModel, ...]:
    """The models of the setting `model`, at least one. Raises InvalidRequest for what is none, or twice the same."""
    found = []
    for part in text.split(","):
        match = _PLACED.fullmatch(part.strip())
        if match is None:
            raise InvalidRequest(
                f"PENSTOCK_MODEL has {part.strip()[:80]!r}; each model is NAME or NAME[FIRST-LAST], like "
                "llama-3.3-70b[0-3]",
                param="model",
            )
        name, first, last = match.groups()
        start = int(first or 0)
        found.append(PlacedModel(name.strip(), start, None if first is None else int(last or start)))
    if len({each.name for each in found}) < len(found):
        raise InvalidRequest(f"PENSTOCK_MODEL names a model twice: {text[:200]!r}", param="model")
    return tuple(found)


def plan_models(
    catalog: Catalog,
    host_id: str,
    models: tuple[PlacedModel, ...],
    replicas: int,
    gpus: Gpus | None,
    kind: str = "",
) -> HostPlan:
    """`replicas` replicas of each model, on its GPUs from the first on; `gpus` None = simulated engines.

    `replicas` 0 = as many as its GPUs hold. A simulated host has the GPUs of `kind`, where the catalog has it, else of
    the kind that the first model's profile is for. Raises InvalidRequest when a model is not known, needs no GPU, or
    does not fit.
    """
    simulated = gpus is None
    known = [catalog.model(placed.name) for placed in models]
    kind = kind if kind in catalog.hosts else known[0].profile().host_kind
    if gpus is None:
        gpus = Gpus(tuple(map(str, range(catalog.hosts[kind].gpus))), catalog.hosts[kind].gpu)
    else:
        kind = host_kind_of(catalog, gpus) or kind
    plans: list[ReplicaPlan] = []
    slugs = Counter(_slug(placed.name) for placed in models)
    for placed, model in zip(models, known, strict=True):
        profile = fitting_profile(catalog, model, gpus)
        if profile is None or not profile.gpus:
            raise InvalidRequest(
                f"{model.name} has no profile that uses GPUs and fits on this host, which has {len(gpus.ids)}; only "
                "such models share a host",
                param="model",
            )
        # Two publishers may give their models the same name.
        slug = _slug(model.name) if slugs[_slug(model.name)] == 1 else model.name.replace("/", "-")
        prefix = f"{host_id}/{slug}"
        plans += _replicas(prefix, placed, model, profile, replicas, gpus.ids, "sim" if simulated else "vllm")
    return HostPlan(kind, len(gpus.ids), tuple(plans))


def _slug(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _replicas(
    prefix: str,
    placed: PlacedModel,
    model: CatalogModel,
    profile: EngineProfile,
    count: int,
    ids: tuple[str, ...],
    engine: EngineKind,
) -> list[ReplicaPlan]:
    last = len(ids) - 1 if placed.last is None else placed.last
    own = ids[placed.first : last + 1]
    count = count or profile.replicas_on(len(own))
    if not placed.first <= last < len(ids) or len(own) < count * profile.gpus:
        raise InvalidRequest(
            f"{count} replicas of {model.name} need {count * profile.gpus} GPUs; PENSTOCK_MODEL gives it the GPUs "
            f"{placed.first} to {last} of {len(ids)}",
            param="model",
        )
    return [
        ReplicaPlan(
            replica_id=f"{prefix}-{number}",
            model=model,
            profile=profile,
            engine=engine,
            capacity=profile.capacity,
            share=Fraction(profile.gpus, len(ids)),
            gpu_ids=own[number * profile.gpus : (number + 1) * profile.gpus],
            targets=model.service_level,
        )
        for number in range(count)
    ]
