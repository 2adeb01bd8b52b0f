"""Which profile of a model a host of a kind runs, and how many replicas: as plans count and agents start."""

from core.errors import InvalidRequest
from workers.catalog import Catalog, CatalogModel, EngineProfile
from workers.host_models import parse_models, plan_models
from workers.machine import Gpus
from workers.plan import ReplicaPlan, fitting_profile


def gpus_of(catalog: Catalog, kind: str) -> Gpus:
    """The GPUs of a kind of host of the catalog, by their numbers."""
    host = catalog.hosts[kind]
    return Gpus(tuple(map(str, range(host.gpus))), host.gpu)


def profile_on(catalog: Catalog, model: CatalogModel, kind: str, name: str = "") -> EngineProfile | None:
    """The profile that an agent on a host of this kind takes: `name`, or the first for its GPUs; None = none fits.

    One that is for other GPUs does not fit here, though an agent that finds no better one would try it. One that needs
    no GPU runs everywhere.
    """
    if kind not in catalog.hosts:
        return None
    gpus = gpus_of(catalog, kind)
    if name:
        chosen = model.profiles.get(name)
    elif gpus.ids:
        chosen = fitting_profile(catalog, model, gpus)
    else:
        chosen = next((each for each in model.profiles.values() if not each.gpus), None)
    if chosen is None:
        return None
    if not chosen.gpus:
        return (
            chosen if chosen.dp_ranks == 1 or not gpus.ids else None
        )  # each rank would need a GPU of its own
    suits = catalog.hosts[chosen.host_kind].gpu == gpus.kind and chosen.gpus <= len(gpus.ids)
    return chosen if suits else None


def shared_on(catalog: Catalog, models: str, kind: str) -> tuple[ReplicaPlan, ...]:
    """The replicas that a host of this kind has of the models that share it, given as in the agent's setting `model`.

    Raises InvalidRequest when they are not known or one of them does not run there.
    """
    placed = parse_models(models)
    for each in placed:
        check_fit(catalog, catalog.model(each.name), kind, "", "model")
    return plan_models(catalog, "", placed, 0, gpus_of(catalog, kind)).replicas


def kinds_for(catalog: Catalog, model: CatalogModel, name: str = "") -> list[str]:
    """The kinds of hosts that run a model, or its profile `name`, in the catalog's order."""
    return [kind for kind in catalog.hosts if profile_on(catalog, model, kind, name) is not None]


def check_fit(catalog: Catalog, model: CatalogModel, kind: str, name: str, param: str) -> None:
    """Raise InvalidRequest for a kind of host on which a model, or its profile `name`, cannot run."""
    if profile_on(catalog, model, kind, name) is None:
        what = f"profile {name!r} of {model.name!r}" if name else f"{model.name!r}"
        fits = kinds_for(catalog, model, name)
        raise InvalidRequest(
            f"{what} does not run on hosts of kind {kind!r}; it runs on: {', '.join(fits) or 'none'}",
            param=param,
        )


def replicas_on(catalog: Catalog, kind: str, profile: EngineProfile) -> int:
    """Replicas of a profile that a host of this kind has room for; one without GPUs."""
    return profile.replicas_on(catalog.hosts[kind].gpus)
