"""The form that adds a model which the catalog does not have: its fit is computed and shown before it is saved."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui

from admin import added_models
from admin.added_models import AddedView
from console.components.base import Text, badge, box, description_list, notice
from console.components.dialogs import form_dialog, secondary, text_input
from console.components.files import FileField
from console.deps import Console
from console.format import sentence
from console.panels.prices import RateFields, save_price
from console.viewer import Viewer, toast_error, toast_ok
from core.errors import InvalidRequest, PenstockError, WaitsForApproval
from workers.catalog import HostKind, load_catalog
from workers.model_config import fetch_config
from workers.model_definition import NewModel, ProfileFile, parse_argument, parse_profile
from workers.roofline import GPUS

MAX_PROFILE = 64 * 1024
"""Characters of a profile file."""


def fit_facts(view: AddedView) -> list[tuple[str, str]]:
    """What the form shows of a model that fits."""
    fit = view.fit
    return [
        ("Layout on a host", view.layout),
        ("Engines of a host", f"{fit.instances:,}"),
        ("Longest context", f"{fit.max_model_len:,} tokens"),
        ("KV cache", f"{fit.kv_cache_tokens:,} tokens, {fit.kv_token_bytes:,} bytes each"),
        ("Weights", f"{fit.weights_gb} GB; {fit.weights_per_gpu_gb} of {fit.memory_per_gpu_gb} GB a GPU"),
        ("Abilities", ", ".join(view.capabilities)),
        ("Arguments", "taken by the engine's parser" if view.checked else "not checked"),
    ]


def parse_arguments(lines: str) -> dict[str, Any]:
    """Engine arguments of a text with one NAME=VALUE or NAME a line. Raises InvalidRequest."""
    args: dict[str, Any] = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, value = parse_argument(line)
        if name in args:
            raise InvalidRequest(f"the argument {name} is given twice", param="args")
        args[name] = value
    return args


def parse_gpus(text: str) -> int:
    """A number of GPUs. Raises InvalidRequest."""
    if not (plain := text.strip()).isdecimal() or len(plain) > 4:
        raise InvalidRequest(f"GPUs of one engine is {text[:20]!r}, must be a whole number", param="gpus")
    return int(plain)


def host_choices(hosts: dict[str, HostKind]) -> dict[str, str]:
    """Kinds of hosts for which a fit can be computed, with their GPUs."""
    known = {name: host for name, host in hosts.items() if host.gpu in GPUS or name == "local-cpu"}
    return {
        name: f"{name} ({host.gpus} × {host.gpu})" if host.gpus else f"{name} (no GPU)"
        for name, host in known.items()
    }


def open_added_model_form(console: Console, viewer: Viewer, done: Callable[[], Awaitable[None]]) -> None:
    """Open the form."""
    _AddedModelForm(console, viewer, done).open()


class _AddedModelForm:
    """The fields, the result of the last check, and the input that it was for."""

    def __init__(self, console: Console, viewer: Viewer, done: Callable[[], Awaitable[None]]) -> None:
        self._console = console
        self._viewer = viewer
        self._done = done
        self._hosts = load_catalog().hosts
        self._checked: tuple[tuple[Any, ...], NewModel] | None = None

    def open(self) -> None:
        """Draw the dialog."""
        kinds = host_choices(self._hosts)
        first = next(iter(kinds))
        with form_dialog(
            "Add model",
            "Add model",
            self._viewer,
            self._save,
            sub="Any model of the hub that the engine serves. Its config.json says how it fits; no weights are read.",
            wide=True,
        ):
            with box("div", "fields"):
                self._hub_id = text_input("Hub id").props("autofocus maxlength=200 placeholder=ORG/NAME")
                self._revision = text_input("Revision", hint="Empty: main.").props("maxlength=200")
                self._name = text_input("Name for customers", hint="Empty: the hub id.").props(
                    "maxlength=200"
                )
            with box("div", "fields"):
                self._kind = ui.select(kinds, value=first, label="Kind of host").props("outlined dense")
                self._gpus = text_input("GPUs of one engine", str(self._hosts[first].gpus)).props(
                    "inputmode=numeric"
                )
            self._kind.on_value_change(lambda: self._gpus.set_value(str(self._hosts[self._kind.value].gpus)))
            self._args = ui.textarea("Arguments of the engine").props("outlined dense stack-label rows=3")
            self._args.props["hint"] = "One NAME=VALUE a line, such as max-model-len=32768."
            self._profile = FileField(
                "Profile (optional)",
                name="profile",
                accept=".toml",
                hint="TOML with args, env and figures that are known better.",
            )
            self._unchecked = ui.checkbox("Do not ask the engine's parser about the arguments")
            with box("div", "actions"):
                secondary("Compute fit", self._viewer.act(self._check), icon="straighten")
            self._result = box("div", "stack", aria_live="polite")
            Text("h3", "List price")
            Text(
                "p",
                "US dollars per million tokens. Without a price the model is added, and its requests are refused.",
                "muted",
            )
            self._rates = RateFields()

    async def _given(self) -> tuple[Any, ...]:
        """What the fields say, as far as the fit depends on it."""
        profile = await self._profile.read_text(MAX_PROFILE + 1)
        fields = (self._hub_id, self._revision, self._name, self._gpus, self._args)
        texts = (str(field.value or "").strip() for field in fields)
        return (*texts, self._kind.value, self._unchecked.value, profile)

    async def _check(self) -> None:
        """Compute the fit and show it, or what is wrong."""
        given = await self._given()
        self._checked = None
        self._show_working()
        try:
            new = await _new_model(given)
            view = await self._add(new, unchecked=bool(self._unchecked.value), dry_run=True)
        except PenstockError as error:
            await self._refused(error)
            return
        self._checked = given, new
        self._result.clear()
        with self._result:
            with box("div", "ledger-line"):
                Text("h3", f"{view.name} fits")
                badge(view.basis, "warn" if view.basis == "unvalidated" else "ok")
            description_list(fit_facts(view))
            if view.warning is not None:
                notice("warn", "The arguments are not checked", sentence(view.warning))
            Text(
                "p",
                "Speed and memory are a roofline's until a host has been measured; the scheduler learns them.",
                "muted",
            )

    async def _save(self) -> bool:
        if self._checked is None or self._checked[0] != await self._given():
            await self._check()  # nothing is saved whose figures were not seen
            return False
        price = None
        if not self._rates.empty and (price := self._rates.read()) is None:
            return False
        new = self._checked[1]
        try:
            # The parser has just taken this very entry.
            await self._add(new, unchecked=True, dry_run=False)
        except PenstockError as error:
            await self._refused(error)
            return False
        try:
            priced = price is not None and await save_price(
                self._console, self._viewer, {"model": new.name, **price}
            )
        except WaitsForApproval:
            raise
        except PenstockError as error:
            priced = False
            toast_error(f"{new.name} has no price: {error.message}")
        finally:
            await self._done()
        toast_ok(f"{new.name} is added{'' if priced else '; its requests are refused until it has a price'}.")
        return True

    async def _add(self, new: NewModel, *, unchecked: bool, dry_run: bool) -> AddedView:
        return await added_models.add(
            self._console.database,
            self._viewer.actor,
            new=new,
            engine_env=self._console.settings.engine_env,
            today=self._console.clock.now().date(),
            unchecked=unchecked,
            dry_run=dry_run,
        )

    def _show_working(self) -> None:
        self._result.clear()
        with self._result:
            Text("p", "Reading config.json and asking the engine's parser …", "muted")

    async def _refused(self, error: PenstockError) -> None:
        await self._viewer.refused("add a model", error)
        self._result.clear()
        with self._result:
            notice("bad", "It cannot be added like this", sentence(error.message))


async def _new_model(given: tuple[Any, ...]) -> NewModel:
    """The model that the fields describe, with its config.json from the hub. Raises InvalidRequest, Unavailable."""
    hub_id, revision, name, gpus, args, kind, _, profile = given
    if not hub_id or hub_id.startswith((".", "/")):
        raise InvalidRequest(f"the hub id is {hub_id[:80]!r}, write it as ORG/NAME", param="weights")
    if len(profile) > MAX_PROFILE:
        raise InvalidRequest(
            f"the profile is longer than {MAX_PROFILE:,} characters; give args, env and figures alone",
            param="profile",
        )
    count, arguments = parse_gpus(gpus), parse_arguments(args)
    known = parse_profile(profile, "file") if profile else ProfileFile()
    config = await asyncio.to_thread(fetch_config, hub_id, revision or None)
    return NewModel(
        name=name or hub_id,
        config=config,
        host_kind=kind,
        gpus=count,
        weights=hub_id,
        revision=revision or None,
        args=arguments,
        profile=known,
    )
