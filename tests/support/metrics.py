"""Prometheus text as tests ask it: values by name and labels."""

from prometheus_client.parser import text_string_to_metric_families


class Metrics:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def total(self, name: str, **labels: str) -> float:
        """Sum over all samples of `name` that carry `labels`; 0 where there is none."""
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """The same sum for every value of `label`."""
        values = {
            sample.labels[label]
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }
        return {value: self.total(name, **labels, **{label: value}) for value in sorted(values)}
