"""What was done for the autoscaler's plan, would have been done, or was refused, with the reasons."""

from collections.abc import Sequence
from datetime import datetime

from console.components.base import Text, card
from console.components.table import Column, Row, cell, data_table, set_rows
from console.format import Formatted, moment
from workers.acting.store import TimelineRow

SHOWN = 50
"""Acts that the page shows, the newest first."""
TONES = {"done": "ok", "failed": "bad", "refused": "warn", "dry-run": "idle"}
_MODES = {
    "off": "The plan is not acted on: penstock pools set-acting switches it on.",
    "dry-run": "Dry run: what would be done is written down.",
    "on": "The plan is acted on for models with limits of their own.",
}
_COLUMNS = (
    Column("at", "When"),
    Column("act", "Act"),
    Column("model", "Model"),
    Column("result", "Result"),
    Column("reason", "Why", sortable=False),
)


class ActsPanel:
    """The timeline; `show` displays newer acts."""

    def __init__(self) -> None:
        with card("Timeline", flush=True) as actions:
            with actions:
                self._mode = Text("p", "", "muted")
            self._table = data_table(_COLUMNS, [], label="Timeline", nothing="Nothing was done yet.")

    def show(self, acts: Sequence[TimelineRow], mode: str, now: datetime) -> None:
        """Display `acts`, the newest first, and what the switch says."""
        self._mode.set_text(_MODES[mode])
        set_rows(self._table, [_row(number, act, now) for number, act in enumerate(acts)])


def _row(number: int, act: TimelineRow, now: datetime) -> Row:
    return {
        "id": f"{number} {act.at.isoformat()}",
        "at": cell(moment(act.at, now)),
        "act": cell(Formatted(act.act.capitalize()), sub=act.target, text=True),
        "model": cell(act.model or "–", text=True),
        "result": cell(act.result.capitalize(), tone=TONES[act.result], sub=act.detail, text=True, wrap=True),
        "reason": cell(act.reason, wrap=True),
    }
