"""Rollouts of new versions of models' engines: how far each is, what requests saw of both versions, and the acts."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from nicegui import ui

from admin import rollouts
from admin.rollouts import RolloutView
from console.components.base import card
from console.components.dialogs import confirm, form_dialog, primary, text_input
from console.components.table import Cell, Column, Row, actions_cell, cell, data_table, set_rows
from console.deps import Console
from console.format import count, milliseconds, moment, percent
from console.viewer import Viewer, toast_ok
from workers.model_definition import parse_changes
from workers.rollouts import VersionFigures

SHOWN = 20
"""Rollouts that the page shows, the newest first."""
TONES = {
    "canary": "warn",
    "progressing": "warn",
    "rolling_back": "bad",
    "promoted": "ok",
    "rolled_back": "idle",
}
_COLUMNS = (
    Column("model", "Model"),
    Column("state", "State"),
    Column("updated", "Updated", numeric=True),
    Column("requests", "Requests", numeric=True, sortable=False),
    Column("errors", "Errors", numeric=True, sortable=False),
    Column("ttft", "First token", numeric=True, sortable=False),
    Column("tpot", "Per token", numeric=True, sortable=False),
    Column("agreement", "Same answer", numeric=True, sortable=False),
    Column("started", "Began", numeric=True),
)


class RolloutsPanel:
    """The table of rollouts with its acts."""

    def __init__(self, console: Console, viewer: Viewer, models: Callable[[], Sequence[str]]) -> None:
        """`models` returns the models that may be rolled out."""
        self._console, self._viewer, self._models = console, viewer, models
        self._rollouts: list[RolloutView] = []
        with card(
            "Rollouts",
            "New versions of engines, replica by replica, or images of hosts, host by host. Figures: what is new, and "
            "below it what was before.",
            flush=True,
        ) as actions:
            if viewer.is_admin:
                with actions:
                    primary("New rollout", viewer.act(self._start), icon="published_with_changes")
            self._table = data_table(
                [*_COLUMNS, Column("acts", "")] if viewer.is_admin else _COLUMNS,
                [],
                label="Rollouts",
                nothing="No version was rolled out yet.",
                on_action=viewer.act(self._act),
            )

    async def reload(self) -> None:
        """Show the present state."""
        self._rollouts = await rollouts.list_rollouts(self._console.database, self._viewer.actor, limit=SHOWN)
        now = self._console.clock.now()
        set_rows(self._table, [_row(each, now) for each in self._rollouts])

    async def _act(self, act: str, row: str) -> None:
        """Promote or abort the rollout of a row."""
        found = next((each for each in self._rollouts if str(each.rollout_id) == row), None)
        if found is None:
            return
        promotes = act == "promote"
        reason = await confirm(
            self._viewer,
            f"{'Promote' if promotes else 'Abort'} the rollout of {found.model}?",
            _consequence(found, promotes),
            "Promote" if promotes else "Abort",
            danger=not promotes,
            facts=_facts(found),
        )
        if reason is None:
            return
        decide = rollouts.promote_rollout if promotes else rollouts.abort_rollout
        await decide(self._console.database, self._viewer.actor, model=found.model, reason=reason)
        toast_ok(f"{found.model} {'goes on' if promotes else 'is rolled back'}.")
        await self.reload()

    async def _start(self) -> None:
        """Open the form of a new rollout."""

        async def save() -> bool:
            await rollouts.start_rollout(
                self._console.database,
                self._viewer.actor,
                model=model.value or "",
                reason=reason.value or "",
                engine_version=_text(version),
                revision=_text(revision),
                args=parse_changes((arguments.value or "").split()),
                strategy=_strategy(percent_, surge, unavailable),
                image=_text(image),
                region=_text(region),
                host_kind=_text(kind),
            )
            toast_ok(f"{model.value} is rolled out.")
            await self.reload()
            return True

        with form_dialog(
            "New rollout",
            "Begin",
            self._viewer,
            save,
            sub="What is left empty stays as in the version that was promoted last. New engines must give the stored "
            "greedy answer, and are rolled back when they fail or are slower.",
        ):
            model = ui.select(list(self._models()), label="Model").props("outlined dense")
            version = text_input("Engine version", hint="Hosts need its environment, such as .engine-0.33.0.")
            revision = text_input("Revision of the weights")
            arguments = text_input(
                "Arguments",
                hint="NAME=VALUE, separated by blanks, such as max-num-seqs=512; NAME=none takes one away.",
            )
            with ui.row().classes("w-full no-wrap"):
                image = text_input("Image of hosts", hint="In place of the fields above: id of a snapshot.")
                region = text_input("Their region", hint="Where there are several groups.")
                kind = text_input("Their kind")
            with ui.row().classes("w-full no-wrap"):
                percent_ = text_input("Canary, % of organisations", "0", kind="number")
                surge = text_input("Max surge", "1", kind="number")
                unavailable = text_input("Max unavailable", "1", kind="number")
            reason = text_input("Reason", hint="Kept in the audit log.").props("maxlength=500")


def _text(field: ui.input) -> str | None:
    return (field.value or "").strip() or None


def _strategy(percent_: ui.input, surge: ui.input, unavailable: ui.input) -> dict[str, Any]:
    """The numbers of the form; what is no whole number is refused with the strategy."""
    fields = {"canary_percent": percent_, "max_surge": surge, "max_unavailable": unavailable}
    given = {name: _text(field) for name, field in fields.items()}
    return {name: int(text) if text.isdigit() else text for name, text in given.items() if text is not None}


def _consequence(rollout: RolloutView, promotes: bool) -> str:
    """What follows when a rollout is promoted or aborted."""
    if rollout.image is not None:
        return (
            "All other hosts are replaced by those of the new image, one after the other."
            if promotes
            else "The hosts of the new image are drained and destroyed, and new ones have the image of before."
        )
    return (
        "All other replicas get the new version."
        if promotes
        else "All replicas get the version of before, one after the other."
    )


def _facts(rollout: RolloutView) -> list[tuple[str, str]]:
    return [
        ("Version", f"{rollout.old_version} → {rollout.new_version}"),
        ("Updated", f"{rollout.updated} of {rollout.replicas} replicas"),
        ("State", f"{_words(rollout.state)}: {rollout.reason}"),
    ]


def _words(state: str) -> str:
    return state.replace("_", " ").capitalize()


def _row(rollout: RolloutView, now: datetime) -> Row:
    acts = [("promote", "Promote", "")] if rollout.state == "canary" else []
    acts += [("abort", "Abort", "bad")] if rollout.state in ("canary", "progressing") else []
    return {
        "id": str(rollout.rollout_id),
        "model": cell(rollout.model, sub=f"{rollout.old_version} → {rollout.new_version}", text=True),
        "state": cell(
            _words(rollout.state), tone=TONES[rollout.state], sub=rollout.reason, text=True, wrap=True
        ),
        "updated": cell(f"{rollout.updated} / {rollout.replicas}", sub=f"{rollout.available} serve"),
        "requests": _both(rollout, lambda each: count(each.requests).text),
        "errors": _both(rollout, lambda each: percent(each.error_rate, 1).text),
        "ttft": _both(rollout, lambda each: _time(each.ttft_p50_s)),
        "tpot": _both(rollout, lambda each: _time(each.tpot_p50_s)),
        "agreement": cell(_agreement(rollout.new), sub=_distance(rollout.new)),
        "started": cell(moment(rollout.started_at, now)),
        "acts": actions_cell(acts, rollout.model),
    }


def _agreement(figures: VersionFigures | None) -> str:
    return "–" if figures is None else percent(figures.agreement, 0).text


def _distance(figures: VersionFigures | None) -> str:
    distance = None if figures is None else figures.logprob_distance
    return "" if distance is None else f"log-prob. ±{distance:.2f}"


def _time(seconds: float | None) -> str:
    return milliseconds(None if seconds is None else seconds * 1000).text


def _both(rollout: RolloutView, text: Callable[[VersionFigures], str]) -> Cell:
    """A figure of the new version, and below it that of the old."""
    new, old = (text(each) if each is not None else "–" for each in (rollout.new, rollout.old))
    return cell(new, sub=old)
