"""Runs the official requirements model of FOCUS 1.2 (tests/data/focus) over a data set read back from its file.

The tree of rules is walked from its root. A rule's condition counts for the rules below it. Every rule ends in exactly
one state, so that nothing is skipped silently:

* `passed`, `failed`: the model names a check and it ran on every row that the conditions leave.
* `alternative`: it failed inside of an OR of which another branch held.
* `not_applicable`: its criteria (such as commitment discounts) do not apply to us, or its column is one that only they
  demand.
* `prose`: the model itself names no check; people must read it.
* `attribute`: a rule on how values look, reached through the Format functions and not by the tree.
"""

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

MODEL = Path(__file__).parents[1] / "data" / "focus" / "focus-1.2-requirements-model.json.gz"
ROOT = "CostAndUsage-D-000-M"
Rows = Sequence[Mapping[str, str | None]]
Mask = list[bool]

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE]-?\d+)?")
_DECIMAL = re.compile(r"-?\d+\.\d+")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_TIMES = "Years|Months|Days|Hours|Minutes|Seconds"
_TIME = "Year|Month|Day|Hour|Minute|Second"
_UNITS = "Tokens|Requests|Units|Count|GPUs|GB|GiB|MB|TB"
_UNIT = re.compile(
    rf"(\d+ )?({_UNITS}|{_TIMES})|(GPU|GB|GiB|Token|Request|Unit)-({_TIMES})|({_UNITS})/({_TIME})"
)
_CURRENCIES = {
    "USD",
    "EUR",
    "GBP",
    "JPY",
    "CHF",
    "CAD",
    "AUD",
    "SEK",
    "NOK",
    "DKK",
    "INR",
    "CNY",
    "BRL",
    "MXN",
}


@dataclass
class Findings:
    """Rule id -> state, and for failures what was wrong on how many rows."""

    states: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """MUST and MUST NOT rules that do not hold."""
    warned: dict[str, str] = field(default_factory=dict)
    """SHOULD, SHOULD NOT and RECOMMENDED rules that do not hold."""

    def counts(self) -> Counter[str]:
        """How many rules ended in which state."""
        return Counter(self.states.values())


class Model:
    """The rules, and the criteria that apply to the provider."""

    def __init__(self, criteria: set[str]) -> None:
        document = json.loads(gzip.decompress(MODEL.read_bytes()))
        self.rules: dict[str, dict[str, Any]] = document["ModelRules"]
        self.functions: dict[str, Any] = document["CheckFunctions"]
        unknown = criteria - set(document["ApplicabilityCriteria"])
        if unknown:
            raise ValueError(f"no such criteria: {unknown}")
        self.criteria = criteria

    def run(self, rows: Rows, columns: Sequence[str]) -> Findings:
        """Walk the tree over `rows`; every rule of the model has a state afterwards."""
        walk = _Walk(self, rows, set(columns))
        walk.rule(ROOT, [True] * len(rows), inside_or=False)
        for name, rule in self.rules.items():
            if name not in walk.findings.states:
                state = "attribute" if rule["EntityType"] == "Attribute" else "not_applicable"
                if state == "not_applicable" and walk.applies(rule) and walk.reached_by_applicable(name):
                    raise AssertionError(f"{name} was not reached")
                walk.findings.states[name] = state
        return walk.findings


class _Walk:
    def __init__(self, model: Model, rows: Rows, columns: set[str]) -> None:
        self.model = model
        self.rows = rows
        self.columns = columns
        self.findings = Findings()

    def applies(self, rule: dict[str, Any]) -> bool:
        return set(rule["ApplicabilityCriteria"]) <= self.model.criteria

    def reached_by_applicable(self, name: str) -> bool:
        """Whether some applicable composite names this rule."""
        for other, rule in self.model.rules.items():
            if self.findings.states.get(other) in ("passed", "failed") and name in _named(rule):
                return True
        return False

    def rule(self, name: str, scope: Mask, *, inside_or: bool) -> Mask:
        rule = self.model.rules[name]
        everything = [True] * len(self.rows)
        if not self.applies(rule):
            for below in [name, *_below(self.model.rules, name)]:
                self.findings.states.setdefault(below, "not_applicable")
            return everything
        criteria = rule["ValidationCriteria"]
        condition = criteria["Condition"]
        if condition:
            held = self.check(condition, everything, inside_or=False)
            scope = [a and b for a, b in zip(scope, held, strict=True)]
        if not criteria["Requirement"]:
            self.findings.states[name] = "prose"
            return everything
        if rule["Function"] not in ("Presence", "Composite") and rule["Reference"] not in self.columns:
            optional = rule["EntityType"] == "Column"
            if optional:
                self.findings.states[name] = "not_applicable"
                return everything
        found = self.check(criteria["Requirement"], scope, inside_or=inside_or)
        result = [ok or not counts for ok, counts in zip(found, scope, strict=True)]
        self._record(name, rule, result, inside_or)
        binding = criteria["Keyword"] in ("MUST", "MUST NOT")
        return result if binding else everything

    def _record(self, name: str, rule: dict[str, Any], result: Mask, inside_or: bool) -> None:
        keyword = rule["ValidationCriteria"]["Keyword"]
        bad = result.count(False)
        if bad == 0 or keyword == "MAY":
            self.findings.states[name] = "passed"
            return
        if inside_or:
            self.findings.states[name] = "alternative"
            return
        self.findings.states[name] = "failed"
        first = self.rows[result.index(False)] if self.rows else {}
        text = f"{rule['ValidationCriteria']['MustSatisfy']} ({bad} rows, such as {first})"
        (self.findings.failed if keyword in ("MUST", "MUST NOT") else self.findings.warned)[name] = text

    def check(self, item: Any, scope: Mask, *, inside_or: bool) -> Mask:
        if "CheckFunction" not in item:  # two rules of the model write {"AND": ...}
            inner = item["AND"]
            item = {"CheckFunction": "AND", "Items": inner if isinstance(inner, list) else [inner]}
        kind = item["CheckFunction"]
        if kind == "CheckModelRule":
            return self.rule(item["ModelRuleId"], scope, inside_or=inside_or)
        if kind in ("AND", "OR"):
            parts = [self.check(one, scope, inside_or=inside_or or kind == "OR") for one in item["Items"]]
            combine: Callable[[Iterator[bool]], bool] = all if kind == "AND" else any
            return [combine(iter(values)) for values in zip(*parts, strict=True)] if self.rows else []
        if kind == "ColumnPresent":
            return [item["ColumnName"] in self.columns] * max(len(self.rows), 1)
        if kind == "CheckDistinctCount":
            return self._distinct(item["ColumnAName"], item["ColumnBName"], item["ExpectedCount"])
        return [_CHECKS[kind](item, row) for row in self.rows]

    def _distinct(self, one: str, other: str, expected: int) -> Mask:
        seen: dict[str | None, set[str | None]] = defaultdict(set)
        for row in self.rows:
            seen[row.get(one)].add(row.get(other))
        return [row.get(one) is None or len(seen[row.get(one)]) == expected for row in self.rows]


def _named(rule: dict[str, Any]) -> set[str]:
    return set(re.findall(r'"ModelRuleId": "([^"]+)"', json.dumps(rule["ValidationCriteria"]["Requirement"])))


def _below(rules: dict[str, dict[str, Any]], name: str) -> Iterator[str]:
    for child in _named(rules[name]):
        yield child
        yield from _below(rules, child)


def _value(item: Any, row: Mapping[str, str | None]) -> str | None:
    return row.get(
        item["ColumnName"] if "ColumnName" in item else item["CheckCondition"]
    )  # one rule misnames it


def _equals(found: str | None, wanted: object) -> bool:
    if found is None or wanted is None:
        return found is None and wanted is None
    if isinstance(wanted, int | float):
        return _NUMBER.fullmatch(found) is not None and Decimal(found) == Decimal(str(wanted))
    return found == str(wanted)


def _matches(pattern: "re.Pattern[str]") -> Callable[[Any, Mapping[str, str | None]], bool]:
    return lambda item, row: (value := _value(item, row)) is None or pattern.fullmatch(value) is not None


def _is_text(item: Any, row: Mapping[str, str | None]) -> bool:
    value = _value(item, row)
    if value is None:
        return True
    value.encode()  # raises for a lone surrogate
    return value.strip() != ""


def _is_instant(item: Any, row: Mapping[str, str | None]) -> bool:
    value = _value(item, row)
    return value is None or datetime.fromisoformat(value).utcoffset() is not None


def _is_flat_object(item: Any, row: Mapping[str, str | None]) -> bool:
    value = _value(item, row)
    if value is None:
        return True
    pairs = json.loads(value, object_pairs_hook=list)
    names = [name for name, _ in pairs]
    return len(set(names)) == len(names) and not any(isinstance(one, list | dict) for _, one in pairs)


def _product(item: Any, row: Mapping[str, str | None]) -> bool:
    one, other, result = (row.get(item[name]) for name in ("ColumnAName", "ColumnBName", "ResultColumnName"))
    return one is None or other is None or Decimal(one) * Decimal(other) == Decimal(result or "NaN")


_CHECKS: dict[str, Callable[[Any, Mapping[str, str | None]], bool]] = {
    "CheckValue": lambda item, row: _equals(_value(item, row), item["Value"]),
    "CheckNotValue": lambda item, row: not _equals(_value(item, row), item["Value"]),
    "CheckSameValue": lambda item, row: row.get(item["ColumnAName"]) == row.get(item["ColumnBName"]),
    "CheckNotSameValue": lambda item, row: row.get(item["ColumnAName"]) != row.get(item["ColumnBName"]),
    "CheckGreaterOrEqualThanValue": lambda item, row: (
        (value := _value(item, row)) is None or Decimal(value) >= Decimal(str(item["Value"]))
    ),
    "CheckDecimalValue": _matches(_DECIMAL),
    "CheckNationalCurrency": lambda item, row: _value(item, row) in _CURRENCIES,
    "TypeDecimal": _matches(_DECIMAL),
    "TypeString": lambda item, row: (value := _value(item, row)) is None or isinstance(value, str),
    "TypeDateTime": _is_instant,
    "FormatDateTime": _matches(_INSTANT),
    "FormatNumeric": _matches(_NUMBER),
    "FormatString": _is_text,
    "FormatUnit": _matches(_UNIT),
    "FormatCurrency": lambda item, row: (value := _value(item, row)) is None or value in _CURRENCIES,
    "FormatKeyValue": _is_flat_object,
    "ColumnByColumnEqualsColumnValue": _product,
}
SUPPORTED = {*_CHECKS, "AND", "OR", "CheckModelRule", "ColumnPresent", "CheckDistinctCount"}
"""Check functions this walk can run; a test holds it against those the model uses."""
