"""Forms for what names stand for and how models end, and the notice to organisations that use such a model."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from nicegui import ui

from admin import added_models, model_life
from admin import models as admin_models
from admin.models import ModelView
from console.components.base import notice
from console.components.dialogs import form_dialog, text_input
from console.components.table import Cell, actions_cell, cell
from console.deps import Console
from console.format import moment
from console.panels.amounts import parse_instant
from console.viewer import Viewer, toast_ok
from workers.model_life import Deprecation

STATUS_TONES = {"active": "ok", "deprecated": "warn", "retired": "idle"}

Done = Callable[[], Awaitable[None]]


def status_cell(model: ModelView) -> Cell:
    """The status of a model, with the date of its end."""
    ends = model.retires_at
    sub = "" if ends is None else f"{'since' if model.status == 'retired' else 'until'} {_minute(ends)}"
    return cell(model.status.capitalize(), tone=STATUS_TONES.get(model.status, "idle"), sub=sub)


def stands_for_cell(model: ModelView) -> Cell:
    """What an alias stands for, or what takes the place of a model that goes."""
    if model.alias_of is not None:
        return cell(model.alias_of, sub="alias")
    if model.replacement is None:
        return cell("–")
    return cell(model.replacement, sub="answers for it" if model.redirected else "to use instead")


def acts_cell(model: ModelView) -> Cell:
    """The acts that a model's or an alias's state allows."""
    acts = []
    if model.alias_of is not None:
        acts.append(("alias", "Change", ""))
    elif model.status != "retired":
        acts.append(("deprecate", "Deprecate", ""))
    if model.alias_of is None and not (model.status == "retired" and model.redirected):
        acts.append(("replace", "Replace", ""))
    if model.status != "retired" or model.redirected:
        acts.append(("retire", "Remove" if model.origin == "added" else "Retire", "bad"))
    return actions_cell(acts, model.name)


async def start_act(
    console: Console, viewer: Viewer, act: str, model: ModelView, live: Sequence[str], done: Done
) -> None:
    """Open the form or the question of an act on a model; `live` are the models that may take its place."""
    others = [name for name in live if name != model.name]
    if act == "alias":
        open_alias_form(console, viewer, live, done, alias=model)
    elif act == "deprecate":
        _open_deprecate_form(console, viewer, model, others, done)
    elif act == "replace":
        _open_replace_form(console, viewer, model, others, done)
    elif act == "retire":
        _open_retire_form(console, viewer, model, done)


def open_alias_form(
    console: Console, viewer: Viewer, live: Sequence[str], done: Done, alias: ModelView | None = None
) -> None:
    """Open the form of a new alias, or of another model for `alias`."""

    async def save() -> bool:
        given = name.value or ""
        await admin_models.set_alias(console.database, viewer.actor, name=given, target=target.value or "")
        toast_ok(f"{given} stands for {target.value}.")
        await done()
        return True

    with form_dialog(
        "New alias" if alias is None else f"Change {alias.name}",
        "Save alias",
        viewer,
        save,
        sub="Answers, usage and prices are those of the model. All API processes follow within two seconds.",
    ):
        name = text_input("Alias", "" if alias is None else alias.name).props("maxlength=100")
        name.set_enabled(alias is None)
        known = alias.alias_of if alias is not None and alias.alias_of in live else None
        target = ui.select(list(live), value=known, label="Stands for").props("outlined dense")


def _open_deprecate_form(
    console: Console, viewer: Viewer, model: ModelView, others: Sequence[str], done: Done
) -> None:
    async def save() -> bool:
        if not _is_instant(date):
            return False
        chosen = replacement.value or model_life.NONE
        kept = chosen == (model.replacement or model_life.NONE)
        await model_life.deprecate_model(
            console.database,
            viewer.actor,
            name=model.name,
            retires_at=_iso(date) or model_life.NONE,
            replacement=None if kept else chosen,
            note=_text(note),
        )
        toast_ok(f"{model.name} is deprecated; its users are told.")
        await done()
        return True

    with form_dialog(
        f"Deprecate {model.name}",
        "Deprecate",
        viewer,
        save,
        sub="It answers until its date. Headers, GET /v1/models and a notice tell its users.",
    ):
        date = text_input(
            "Retires (UTC)",
            _minute(model.retires_at),
            hint="Date or date and time; empty for no date.",
        )
        replacement = ui.select({"": "None", **{one: one for one in others}}, label="Use instead")
        replacement.props("outlined dense").value = model.replacement if model.replacement in others else ""
        note = _note_input(model)


def _open_replace_form(
    console: Console, viewer: Viewer, model: ModelView, others: Sequence[str], done: Done
) -> None:
    async def save() -> bool:
        if not _is_instant(date):
            return False
        await model_life.replace_model(
            console.database,
            viewer.actor,
            name=model.name,
            replacement=replacement.value or "",
            retires_at=_iso(date),
            note=_text(note),
            accept_loss=accept.value,
        )
        toast_ok(f"{replacement.value} answers for {model.name}{' from its date on' if date.value else ''}.")
        await done()
        return True

    with form_dialog(
        f"Replace {model.name}",
        "Replace",
        viewer,
        save,
        sub="From then on it is retired, and the other model answers requests for it, at its own price.",
    ):
        replacement = ui.select(list(others), label="Answered by").props("outlined dense")
        goes = model.status != "retired"
        date = text_input(
            "From (UTC)",
            _minute(model.retires_at) if goes else "",
            hint="Date or date and time; empty for now.",
        )
        date.set_enabled(goes)
        accept = ui.checkbox("Accept that it lacks abilities or context")
        note = _note_input(model)


def _open_retire_form(console: Console, viewer: Viewer, model: ModelView, done: Done) -> None:
    added = model.origin == "added"
    act, done_word = ("Remove", "removed") if added else ("Retire", "retired")

    async def save() -> bool:
        take_away = added_models.remove if added else model_life.retire_model
        await take_away(console.database, viewer.actor, name=model.name, note=_text(note))
        toast_ok(f"{model.name} is {done_word}.")
        await done()
        return True

    with form_dialog(
        f"{act} {model.name} now?",
        act,
        viewer,
        save,
        sub="Requests for it get 404 model_retired, and no replica is planned for it. Its usage stays in all reports.",
    ):
        note = _note_input(model)


def _note_input(model: ModelView) -> ui.input:
    return text_input("Note", model.note or "", hint="Told to its users.").props("maxlength=500")


def _text(field: ui.input) -> str | None:
    """What a field says; None = nothing."""
    return (field.value or "").strip() or None


def _minute(instant: datetime | None) -> str:
    """An instant as the fields for dates take it; empty = none."""
    return "" if instant is None else f"{instant:%Y-%m-%d %H:%M}"


def _is_instant(field: ui.input) -> bool:
    """Whether a field has an instant or nothing; otherwise it shows what it takes."""
    try:
        parse_instant(field.value or "")
        field.error = None
    except ValueError as error:
        field.error = str(error)
    return field.error is None


def _iso(field: ui.input) -> str | None:
    """The instant in a field that `_is_instant`; None = it is empty."""
    instant = parse_instant(field.value or "")
    return None if instant is None else instant.isoformat()


def show_endings(console: Console, endings: Sequence[Deprecation]) -> None:
    """Show a notice for each model that an organisation uses and that is deprecated or retired."""
    now = console.clock.now()
    for ending in endings:
        if ending.retired:
            head = f"{ending.model} was retired"
        elif ending.retires_at is not None:
            head = f"{ending.model} retires {moment(ending.retires_at, now).text}"
        else:
            head = f"{ending.model} is deprecated"
        notice("warn", head, model_life.ending_text(ending))
