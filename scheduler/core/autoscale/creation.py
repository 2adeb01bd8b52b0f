"""Hosts to create: of which kind, how many, and when a kind whose creations failed is tried again."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from scheduler.core.autoscale.floors import Place, room_at
from scheduler.core.autoscale.spending import ROUNDING_USD
from scheduler.core.autoscale.state import (
    Binding,
    CreatingHost,
    CreationFailures,
    HostOption,
    ModelSpec,
)
from scheduler.wire import HostCreationView
from workers.backoff import pause_after

FIRST_PAUSE_S = 30.0
"""Seconds without a creation of a kind after one has failed; they double with each further failure."""
LONGEST_PAUSE_S = 1_800.0
"""Longest pause in seconds: absent capacity returns within hours, and a refused request costs nothing."""


def pause_s(failures: CreationFailures) -> float:
    """Seconds until a kind may be created again; 0 = now. Exponential back-off."""
    pause = pause_after(failures.count, FIRST_PAUSE_S, LONGEST_PAUSE_S)
    return max(0.0, pause - failures.since_s)


class Wanted(NamedTuple):
    """Replicas of a model for which hosts are missing."""

    where: Binding
    missing: int
    reason: str
    below: int = 0
    """Those of them that are missing to the minimum of the place."""
    part: bool = False
    """Whether they are missing to the whole, too, and can be nowhere else."""


class Creations:
    """Chooses the kinds of hosts for missing replicas, model by model."""

    def __init__(self, creating: Sequence[CreatingHost], failures: Sequence[CreationFailures]) -> None:
        self.found: list[HostCreationView] = []
        self._failures = {(row.kind, row.region): row for row in failures if row.count > 0}
        self._on_their_way = Counter(host.kind for host in creating)
        self._on_their_way_to = Counter((host.kind, host.region.lower()) for host in creating)
        self._shared: dict[tuple[str, str], str] = {}
        """By kind and models that share hosts: the model for which such hosts are created in this plan."""
        self._contracted = Counter[tuple[str, tuple[str, ...]]]()
        """Hosts that were chosen for places of contracts, by kind and the regions of these."""

    def add(
        self,
        spec: ModelSpec,
        wanted: Sequence[Wanted],
        below_minimum: int,
        spent_usd: float,
        awake: Iterable[Place] = (),
    ) -> None:
        """Choose hosts for missing replicas of a model, `below_minimum` of which the budget may not prevent.

        The kinds are tried in the model's order, those first that are needed for another minimum, too. A kind that
        failed is left out while its pause lasts, and then tried with one host at a time until one succeeds.
        `spent_usd`: what the model's hosts cost per hour now. What may run anywhere comes last in `wanted`, and gets
        the hosts for some places that are created. `awake`: where the replicas are that are awake or come.
        """
        name = spec.model
        present, there, chosen = list(awake), 0, list[tuple[Binding, Binding]]()
        minima = [row.where for row in wanted if row.below > 0]
        for where, missing, reason, below_there, part in wanted:
            missing -= 0 if where.bound else there
            there += max(0, missing) if part else 0
            # Which of the places a host comes to is seen when it is being created; it may serve these, too.
            if where.bound and any(at.overlaps(where) and not own.within(where) for own, at in chosen):
                continue
            before = missing
            notes: list[str] = []
            for option, regions in _in_turn(spec, where, minima):
                if missing <= 0:
                    break
                place = Place(regions[0] if regions else "", option.gpu, option.kind)
                most = max(0, room_at(spec.places, present, place))
                count, regions, note = self._count(option, min(missing, most), regions)
                if note:
                    notes.append(note)
                room = _affordable(option, spec.budget_usd_per_hour - spent_usd)
                below = max(below_minimum, below_there)
                count = min(count, max(room, -(-below // option.per_host)), -(-most // option.per_host))
                if option.contracted is not None:
                    taken = self._contracted[option.kind, option.regions]
                    count = min(count, option.contracted - taken)
                if count <= 0:
                    continue
                if option.shares and self._shared.setdefault((option.kind, option.shares), name) != name:
                    break  # the next plan sees what those hosts have room for
                if option.contracted is not None:
                    self._contracted[option.kind, option.regions] += count
                present += count * option.per_host * [place]
                why = "; ".join([reason, *notes])
                self.found.append(HostCreationView(option.kind, name, count, why, regions, option.shares))
                self._on_their_way[option.kind] += count
                chosen.append((where, _binding(option, regions)))
                if len(regions) == 1:
                    self._on_their_way_to[option.kind, regions[0]] += count
                missing -= count * option.per_host
                below_minimum -= count * option.per_host
                below_there -= count * option.per_host
                spent_usd += count * option.usd_per_hour
            there += max(0, -missing) if part else before - missing

    def retry_in_s(self, kind: str) -> float:
        """Seconds until a kind may be created again; 0 = now."""
        failed = self._failures.get((kind, ""))
        return pause_s(failed) if failed is not None else 0.0

    def _count(
        self, option: HostOption, missing: int, regions: tuple[str, ...]
    ) -> tuple[int, tuple[str, ...], str]:
        """Hosts of a kind for `missing` replicas in `regions`, before the budget; in which of these; and why there are
        fewer. No region: wherever the kind may be created."""
        wanted = -(-missing // option.per_host)
        failing = {
            region: failed
            for region in regions or ("",)
            if (failed := self._failures.get((option.kind, region)) or self._failures.get((option.kind, "")))
        }
        if sound := tuple(region for region in regions if region not in failing):
            return wanted, sound, ""
        if not failing:
            return wanted, (), ""
        region, failed = min(failing.items(), key=lambda row: pause_s(row[1]))
        name = f"{option.kind} in {region}" if region else option.kind
        if (pause := pause_s(failed)) > 0.0:
            note = f"{name} failed {failed.count} times ({failed.why}), next attempt in {pause:.0f} s"
            return 0, (), note
        on_their_way = (
            self._on_their_way_to[option.kind, region] if region else self._on_their_way[option.kind]
        )
        allowed = max(0, 1 - on_their_way)
        return (
            min(wanted, allowed),
            (region,) if region else (),
            f"{name} failed {failed.count} times, one host at a time",
        )


def _places(spec: ModelSpec, where: Binding) -> Iterator[tuple[HostOption, tuple[str, ...]]]:
    """The kinds of hosts that may be created for demand, and where: one region after the other where they have limits;
    nowhere in particular for demand that may be served anywhere, but in the regions of a contract."""
    by_region = any(each.where.regions for each in spec.places)
    for option in spec.kinds:
        named = by_region or option.contracted is not None
        regions = option.regions if named and not where.bound else regions_of(option, where)
        if by_region:
            yield from ((option, (region,)) for region in regions)
        elif regions or not where.bound:
            yield option, regions


def _in_turn(
    spec: ModelSpec, where: Binding, minima: Sequence[Binding]
) -> list[tuple[HostOption, tuple[str, ...]]]:
    """`_places` in the order of trying: those first in which most of the `minima` that are not met need a host."""

    def shared(place: tuple[HostOption, tuple[str, ...]]) -> int:
        return sum(_binding(*place).overlaps(other) for other in minima)

    return sorted(_places(spec, where), key=shared, reverse=True)


def _binding(option: HostOption, regions: tuple[str, ...]) -> Binding:
    return Binding(regions, (option.gpu.lower(),) if option.gpu else (), (option.kind,))


def regions_of(option: HostOption, where: Binding) -> tuple[str, ...]:
    """The regions in which hosts of a kind may be created for demand; empty for demand that is not bound to any, or
    when there is none."""
    return tuple(
        region for region in option.regions if where.bound and where.allows(region, option.gpu, option.kind)
    )


def creatable_in(spec: ModelSpec, where: Binding) -> bool:
    """Whether hosts of some kind may be created for demand that is bound to `where`."""
    return any(regions_of(option, where) for option in spec.kinds)


def is_open(
    spec: ModelSpec, where: Binding, failures: Iterable[CreationFailures], left_usd: float = math.inf
) -> bool:
    """Whether hosts may be created now for demand that is bound to `where`, with `left_usd` dollars per hour, of a kind
    whose creations did not fail there lately."""
    failing = {(row.kind, row.region) for row in failures if row.count > 0}
    return any(
        (option.kind, "") not in failing and (option.kind, region) not in failing
        for option in spec.kinds
        if _affordable(option, left_usd) > 0
        for region in regions_of(option, where)
    )


def _affordable(option: HostOption, left_usd: float) -> int:
    """Hosts of a kind that `left_usd` dollars per hour pay for."""
    if option.usd_per_hour <= 0.0 or math.isinf(left_usd):
        return 1 << 30
    return max(0, math.floor((left_usd + ROUNDING_USD) / option.usd_per_hour))
