"""Runs a whole comparison: finds the knee, runs every missing cell, and returns all rows."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sim.pool.compare import Cell, Players, Row, Setting, cells, missing
from sim.pool.journal import Journal
from sim.pool.knee import Knee, find


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a comparison."""

    setting: Setting
    """Settings of the cells; `seconds` of 0 = by the rate and the lifetime of answers at the knee (`Setting.timed`)."""
    policies: tuple[str, ...]
    loads: tuple[float, ...]
    seeds: int
    """Number of seeds; they are 1 to this number."""

    def subject(self) -> dict[str, Any]:
        """Return the fields that identify the comparison; the number of seeds and of processes is not among them."""
        return {"setting": asdict(self.setting), "policies": list(self.policies), "loads": list(self.loads)}


@dataclass(frozen=True, slots=True)
class ProgressCallbacks:
    """Progress callbacks of a comparison; each does nothing by default."""

    on_rate_tried: Callable[[float, float], None] = field(default=lambda rate, share: None)
    """Called after each rate tried for the knee: (requests/s, share served in time)."""
    on_start: Callable[[Knee, Setting, int, int], None] = field(
        default=lambda knee, setting, done, total: None
    )
    """Called before the cells run: (knee, setting, cells already done, cells in total)."""
    on_cell_done: Callable[[Cell], None] = field(default=lambda cell: None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All rows of a comparison, and the rate of load 1.0."""

    knee: Knee
    setting: Setting
    rows: list[Row]


def compare(
    plan: Plan,
    players: Players,
    journal: Journal | None = None,
    callbacks: ProgressCallbacks | None = None,
    *,
    knee: Knee | None = None,
) -> Outcome:
    """Run a plan; rows in the journal are not repeated. `knee` is that of the same pool and workload, if it is known.

    Raises InvalidRequest for an invalid plan.
    """
    callbacks = callbacks or ProgressCallbacks()
    knee = knee or _knee(plan, players, journal, callbacks)
    setting = plan.setting
    if setting.seconds <= 0:
        setting = setting.timed(knee.rate_rps, knee.lifetime_s)
    rates = [(load, load * knee.rate_rps) for load in plan.loads]
    every = cells(setting, plan.policies, rates, range(1, plan.seeds + 1))
    rows: list[Row] = list(journal.rows) if journal is not None else []
    todo = missing(every, rows)
    callbacks.on_start(knee, setting, len(every) - len(todo), len(every))

    for cell, fresh in players.play(todo):
        if journal is not None:
            journal.add(fresh)
        rows += fresh
        callbacks.on_cell_done(cell)
    return Outcome(knee, setting, in_order(rows, plan))


def in_order(rows: Sequence[Row], plan: Plan) -> list[Row]:
    """Return the plan's rows without duplicates, by load, policy and seed."""
    place = {name: number for number, name in enumerate(plan.policies)}
    wanted = {
        (float(row["load"]), place[row["policy"]], int(row["seed"])): row
        for row in rows
        if row["policy"] in place and row["load"] in plan.loads and row["seed"] <= plan.seeds
    }
    return [wanted[key] for key in sorted(wanted)]


def _knee(plan: Plan, players: Players, journal: Journal | None, callbacks: ProgressCallbacks) -> Knee:
    known = journal.notes.get("knee") if journal is not None else None
    if known is not None:
        return Knee(**known)
    knee = find(plan.setting, players=players, on_rate_tried=callbacks.on_rate_tried)
    if journal is not None:
        journal.note("knee", asdict(knee))
    return knee
