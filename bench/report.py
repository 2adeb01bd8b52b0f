"""Records of a benchmark that measures several targets in turn, and tables of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import comb
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Record:
    """One run of a cell for one target."""

    section: str
    key: str
    target: str
    round: int
    result: dict[str, Any]


@dataclass(frozen=True)
class Report:
    """A whole run."""

    conditions: dict[str, Any]
    targets: list[str]
    records: list[Record]

    def as_json(self) -> str:
        """Return JSON, one record per line."""
        lines = ",\n".join(json.dumps(asdict(record)) for record in self.records)
        conditions, targets = json.dumps(self.conditions), json.dumps(self.targets)
        return f'{{"conditions": {conditions},\n"targets": {targets},\n"records": [\n{lines}\n]}}\n'

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Return the report that `as_json` wrote."""
        found = json.loads(text)
        return cls(found["conditions"], found["targets"], [Record(**record) for record in found["records"]])

    def results(self, section: str, key: str, target: str) -> list[dict[str, Any]]:
        """Return the results of all rounds that ended without an error."""
        return [
            each.result for each in self.records
            if (each.section, each.key, each.target) == (section, key, target) and "error" not in each.result
        ]  # fmt: skip

    def unmeasured(self, section: str, key: str, *targets: str) -> str:
        """Return why a cell has no result for one of the targets; "" where all have one or it was not tried."""
        for target in targets:
            tried = [
                each
                for each in self.records
                if (each.section, each.key, each.target) == (section, key, target)
            ]
            if tried and all("error" in each.result for each in tried):
                return in_cell(tried[-1].result["error"])
        return ""

    def is_platform(self, target: str) -> bool:
        """Return whether a target is a whole platform, with processes by role."""
        return "api" in self.idle_ms_per_s(target)

    def keys(self, section: str) -> list[str]:
        """Return the keys of a section in the order in which they ran."""
        return list(dict.fromkeys(each.key for each in self.records if each.section == section))

    def idle_ms_per_s(self, target: str) -> dict[str, float]:
        """Return the CPU of each process without load, in milliseconds a second; empty where it was not measured.

        The median of all idle cells: work that runs once a minute is no part of it.
        """
        found = self.results("idle", "idle", target)
        names = found[0]["cpu_s"] if found else {}
        return {
            name: 1e3 * median(each["cpu_s"][name] / each["window_s"] for each in found) for name in names
        }

    def cpu_ms(self, result: Mapping[str, Any], target: str, *, net: bool = True) -> dict[str, float]:
        """Return CPU milliseconds by process in a result's window; `net` of what they use without load."""
        idle = self.idle_ms_per_s(target) if net else {}
        return {
            name: 1e3 * used - idle.get(name, 0.0) * result["window_s"]
            for name, used in result["cpu_s"].items()
        }


def median_interval(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the median and the narrowest pair of order statistics that contains it with at least 95 %.

    The probability comes from the binomial distribution (sign test). Below six values the ends are the extremes.
    """
    ordered = sorted(values)
    n, low = len(ordered), 0
    while 1 - 2 * sum(comb(n, k) for k in range(low + 2)) / 2**n >= 0.95:
        low += 1
    return median(ordered), ordered[low], ordered[n - 1 - low]


def middle(runs: Sequence[Mapping[str, Any]], field: str) -> float:
    """Return the median of a field over rounds."""
    return median(each[field] for each in runs)


def in_cell(text: str, most: int = 120) -> str:
    """Return a text that a cell of a Markdown table can hold, of at most so many characters."""
    line = " ".join(text.replace("|", "/").split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def failures(report: Report) -> str:
    """Return a table of the runs that ended with an error, and whether another attempt gave the figure."""
    places = [(each.section, each.key, each.target, each.round) for each in report.records]
    measured = {
        place for place, each in zip(places, report.records, strict=True) if "error" not in each.result
    }
    rows = [
        [each.section, each.key, each.target, str(each.round), in_cell(each.result["error"]),
         "measured" if place in measured else "no figure"]
        for place, each in zip(places, report.records, strict=True) if "error" in each.result
    ]  # fmt: skip
    return section("Failed runs", ["", "cell", "target", "round", "reason", "other attempt"], rows)


def section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table under its title; nothing without rows."""
    return f"### {title}\n\n{table(head, rows)}" if rows else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    return "\n".join([text[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *text[1:]])
