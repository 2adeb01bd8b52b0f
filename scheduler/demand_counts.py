"""Counts one model's requests between two observations of the autoscaler, by the places that they are bound to."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from scheduler.core.autoscale.state import UNBOUND, Binding, DemandObservation
from scheduler.wire import BoundTo

MAX_SETS = 16
"""Bindings of one model to any of several names that are told apart. Of more, requests count for the first name that is
known, so that keys with many sets take neither memory nor the place of others' demand."""


class KnownPlaces(msgspec.Struct, frozen=True):
    """Regions and classes of GPU, in lower case, in which hosts are or may be created."""

    regions: frozenset[str] = frozenset()
    gpus: frozenset[str] = frozenset()

    def binding(self, bound_to: BoundTo) -> Binding | None:
        """What requests are bound to among these places; None = nowhere. Names that are not known make no difference,
        so there are only as many bindings as the known names can form."""
        regions, gpus = (_known(*pair) for pair in zip(bound_to, (self.regions, self.gpus), strict=True))
        return None if regions is None or gpus is None else Binding(regions, gpus)


def _known(names: Iterable[str], known: Collection[str]) -> tuple[str, ...] | None:
    found = set(names)
    if not found:
        return ()
    left = found & set(known)
    return tuple(sorted(left)) or None


class _Requests(msgspec.Struct):
    """Requests since the last observation."""

    arrivals: int = 0
    prompt: int = 0
    output: int = 0
    output_sq: int = 0


class DemandCounts:
    """One model's requests since the last observation."""

    def __init__(self) -> None:
        self._requests: dict[Binding, _Requests] = {}
        self._sets: dict[Binding, None] = {}
        """Those of the bindings to several names that were counted lately."""
        self._served = self._uncached = self._uncached_sq = 0
        self._last_means: tuple[float, float] | None = None
        """Mean uncached tokens, and mean of their squares, of the last requests that ended before; None = none has."""

    def arrive(self, prompt_tokens: int, output_tokens: int, where: Binding) -> None:
        """Count a request with its estimated output tokens."""
        counts = self._requests.setdefault(self._told_apart(where), _Requests())
        counts.arrivals += 1
        counts.prompt += prompt_tokens
        counts.output += output_tokens
        counts.output_sq += output_tokens * output_tokens

    def serve(self, uncached: int) -> None:
        """Count a served request with its uncached prompt tokens."""
        self._served += 1
        self._uncached += uncached
        self._uncached_sq += uncached * uncached

    def take(
        self, model: str, waiting: int, waiting_at: Mapping[BoundTo, int], known: KnownPlaces
    ) -> list[DemandObservation]:
        """The demand as the autoscaler takes it, and begin anew: what may be served anywhere, then what is bound.

        `waiting` requests are queued, of which `waiting_at` counts those that are bound. The uncached tokens are those
        of the requests that ended last; until one has, prompts count whole.
        """
        queued: Counter[Binding] = Counter()
        for bound_to, count in waiting_at.items():
            waiting -= count
            if (where := known.binding(bound_to)) is not None:  # else it is refused
                queued[self._told_apart(where)] += count
        queued[UNBOUND] += max(0, waiting)
        requests = self._requests
        means = self._means
        self._last_means, self._served, self._uncached, self._uncached_sq = means, 0, 0, 0
        self._requests, self._sets = {}, {where: None for where in queued if where.is_set}
        bound = sorted({*requests, *queued} - {UNBOUND})
        return [
            _observed(model, where, requests.get(where, _Requests()), queued[where], means)
            for where in (UNBOUND, *bound)
        ]

    @property
    def _means(self) -> tuple[float, float] | None:
        """Those of the last requests that ended."""
        if not self._served:
            return self._last_means
        return self._uncached / self._served, self._uncached_sq / self._served

    def _told_apart(self, where: Binding) -> Binding:
        """The binding under which requests count."""
        if not where.is_set or where in self._sets:
            return where
        if len(self._sets) < MAX_SETS:
            self._sets[where] = None
            return where
        return Binding(where.regions[:1], where.gpus[:1])


def _observed(
    model: str, where: Binding, counts: _Requests, waiting: int, means: tuple[float, float] | None
) -> DemandObservation:
    came = max(1, counts.arrivals)
    prompt = counts.prompt / came
    uncached, uncached_sq = means or (prompt, prompt * prompt)
    return DemandObservation(
        model,
        counts.arrivals,
        prompt,
        uncached,
        uncached_sq,
        counts.output / came,
        counts.output_sq / came,
        waiting,
        waiting * prompt,
        where,
    )
