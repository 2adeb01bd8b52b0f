"""What docs/data/scheduling-comparison.json holds, which is what pages are written from: studies with their standings,
and what mechanisms gain. Studies of an earlier run may stay beside those that are played now."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.placement.ablation import AblationRow
from bench.placement.studies import STUDIES, Study
from sim.pool.blocks import Bounds
from sim.pool.compare import Row, Setting
from sim.pool.knee import Knee
from sim.pool.report import Standing, compact, restored, standings


@dataclass(frozen=True, slots=True)
class Played:
    """A study with its rows."""

    study: Study
    knee: Knee
    setting: Setting
    rows: Sequence[Row]
    commit: str = ""
    """Commit at which the first row was played; empty = the one at which it is published."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The conditions of one study."""

    date: str
    commit: str
    """Commit at which the rows were played. Pages are written from them, by the code of a later one too."""
    machine: str
    seeds: int
    knee_rps: float
    seconds: float
    warmup_s: float
    lifetime_s: float
    slo_ttft_s: float
    slo_tpot_s: float
    held_out: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """A study as the data have it."""

    study: Study
    facts: Facts
    standings: Sequence[Standing]


def shown(played: Played, conditions: Mapping[str, Any]) -> Shown:
    """Return a study that was played now."""
    setting, first = played.setting, played.rows[0]
    facts = Facts(
        conditions["date"],
        played.commit or conditions["commit"],
        conditions["machine"],
        conditions["seeds"],
        round(played.knee.rate_rps, 3),
        setting.seconds,
        setting.warmup_s,
        setting.lifetime_s,
        first["slo_ttft_s"],
        first["slo_tpot_s"],
        played.study.held_out,
    )
    return Shown(played.study, facts, [restored(row) for row in compact(standings(played.rows))])


def kept(data: Mapping[str, Any], studies: Sequence[Study] = STUDIES) -> list[Shown]:
    """Return the studies that the data of an earlier run hold."""
    return [
        Shown(
            study,
            Facts(**found),
            [restored(row) for row in data["standings"] if row["study"] == study.name],
        )
        for study in studies
        if (found := data["studies"].get(study.name)) is not None
    ]


def kept_ablation(data: Mapping[str, Any]) -> list[AblationRow]:
    """Return what mechanisms gained over all points in an earlier run, without the points."""
    return [
        AblationRow(row["name"], row["about"], Bounds(*row["over_all"]), (), row["verdict"])
        for row in data.get("ablation", ())
    ]


def as_json(studies: Sequence[Shown], ablation: Sequence[AblationRow]) -> str:
    """Return JSON with one standing per line, so that a new run gives a readable diff."""
    facts = {each.study.name: asdict(each.facts) for each in studies}
    rows = [
        json.dumps({"study": each.study.name, **row}) for each in studies for row in compact(each.standings)
    ]
    gains = [
        json.dumps(
            {
                "name": row.name,
                "about": row.about,
                "over_all": [
                    round(each, 5) for each in (row.over_all.value, row.over_all.low, row.over_all.high)
                ],
                "verdict": row.verdict,
            }
        )
        for row in ablation
    ]
    return (
        '{"figures": "value, low and high of the 95 % interval by blocks",\n'
        f'"studies": {json.dumps(facts, indent=1)},\n"ablation": [\n{_lines(gains)}\n],\n'
        f'"standings": [\n{_lines(rows)}\n]}}\n'
    )


def when(studies: Sequence[Shown]) -> str:
    """Return the dates and commits at which the studies were played, as `_by_most` gives them."""
    return _by_most(studies, lambda facts: f"{facts.date[:10]}, commit {facts.commit}")


def where(studies: Sequence[Shown]) -> str:
    """Return the machines and numbers of seeds of the studies, as `_by_most` gives them."""
    return _by_most(studies, lambda facts: f"{facts.machine}, {facts.seeds} seeds")


def seeds(studies: Sequence[Shown]) -> str:
    """Return the numbers of seeds of the studies, as `_by_most` gives them."""
    return _by_most(studies, lambda facts: f"{facts.seeds} seeds")


def _by_most(studies: Sequence[Shown], said: Callable[[Facts], str]) -> str:
    """Return what is said of most studies first, then what is said of others with their titles."""
    groups: dict[str, list[str]] = {}
    for each in studies:
        groups.setdefault(said(each.facts), []).append(each.study.title)
    first, *others = sorted(groups, key=lambda at: -len(groups[at]))
    return "; ".join([first, *(f"{' and '.join(groups[at])}: {at}" for at in others)])


def _lines(rows: Sequence[str]) -> str:
    return ",\n".join(rows)
