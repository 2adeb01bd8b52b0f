"""Counters and histograms for hot paths: plain numbers, turned into metric families when they are scraped.

prometheus_client takes a lock per update and compares a value with every bucket. A process with one event loop needs
neither. Updates must come from one thread.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Counts(Collector):
    """A counter by label values. Add to `values[labels]`, a tuple in the order of the label names."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        """Register the counter as `name`_total, described by `text`."""
        self.values: dict[tuple[str, ...], int] = {}
        self._name, self._text, self._labels = name, text, tuple(labels)
        registry.register(self)

    def add(self, labels: tuple[str, ...], count: int = 1) -> None:
        """Add `count` to the counter of these label values."""
        self.values[labels] = self.values.get(labels, 0) + count

    def describe(self) -> Iterable[Metric]:
        """Return the family without samples, which the registry checks for duplicate names."""
        return [CounterMetricFamily(self._name, self._text, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        """Return the family with one sample per combination of label values."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        return [family]


class Distribution:
    """Observed values of one combination of labels, counted by bucket."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Number of values up to each bound and above the one before; the last counts values above all bounds."""
        self.total = 0.0
        """Sum of the values."""

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Distributions(Collector):
    """A histogram by label values, with the upper `bounds` of its buckets."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        bounds: tuple[float, ...],
        registry: CollectorRegistry,
    ) -> None:
        """Register the histogram as `name`, described by `text`."""
        self._name, self._text, self._labels, self._bounds = name, text, tuple(labels), bounds
        self._les = [*map(floatToGoString, bounds), "+Inf"]
        self._children: dict[tuple[str, ...], Distribution] = {}
        registry.register(self)

    def of(self, *labels: str) -> Distribution:
        """Return the distribution of these label values; keep it instead of looking it up for every value."""
        found = self._children.get(labels)
        if found is None:
            found = self._children[labels] = Distribution(self._bounds)
        return found

    def describe(self) -> Iterable[Metric]:
        """Return the family without samples, which the registry checks for duplicate names."""
        return [HistogramMetricFamily(self._name, self._text, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        """Return the family with cumulative buckets and the sum of each combination of label values."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, child in self._children.items():
            cumulative, buckets = 0, []
            for le, count in zip(self._les, child.counts, strict=True):
                cumulative += count
                buckets.append((le, float(cumulative)))
            family.add_metric(labels, buckets, child.total)
        return [family]
