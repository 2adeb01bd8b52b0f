"""Dialogs: confirmation with a reason for the audit log, forms, and showing a secret once."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from nicegui import ui
from nicegui.elements.dialog import Dialog

from console.components.base import Text, box, copy_button, description_list
from console.format import Formatted
from console.viewer import Viewer
from core.errors import WaitsForApproval


@contextmanager
def _frame(title: str, *, wide: bool = False) -> Iterator[Dialog]:
    with ui.dialog() as dialog, ui.card().classes("dialog wide" if wide else "dialog").props("flat"):
        dialog.props["aria-label"] = title
        Text("h2", title)
        yield dialog


def primary(label: str, on_click: Callable[[], object], *, danger: bool = False, icon: str = "") -> ui.button:
    """The primary button of a page or dialog."""
    button = ui.button(label, on_click=on_click, icon=f"o_{icon}" if icon else None, color=None)
    return button.props("unelevated no-caps").classes("danger" if danger else "primary")


def secondary(label: str, on_click: Callable[[], object], *, icon: str = "") -> ui.button:
    """A secondary button."""
    button = ui.button(label, on_click=on_click, icon=f"o_{icon}" if icon else None, color=None)
    return button.props("flat no-caps").classes("plain")


def text_input(label: str, value: str = "", *, hint: str = "", kind: str = "text") -> ui.input:
    """An outlined text field."""
    field = ui.input(label, value=value).props("outlined dense stack-label").classes("w-full")
    field.props["type"] = kind
    if hint:
        field.props["hint"] = hint
    return field


async def confirm(
    viewer: Viewer,
    title: str,
    body: str,
    action: str,
    *,
    danger: bool = False,
    needs_reason: bool = True,
    facts: Sequence[tuple[str, Formatted | str]] = (),
) -> str | None:
    """Ask for confirmation of what `facts` list.

    Returns the reason ("" when `needs_reason` is false), or None when cancelled.
    Checks the session again after the answer, because a dialog may stay open for long. Raises SignedOut.
    """
    with _frame(title, wide=bool(facts)) as dialog:
        Text("p", body, "muted")
        if facts:
            description_list(facts)
        reason = (
            text_input("Reason", hint="Kept in the audit log.").props("autofocus maxlength=500")
            if needs_reason
            else None
        )

        def submit() -> None:
            if reason is None:
                dialog.submit("")
            elif not reason.value.strip():
                reason.error = "Say why: it goes to the audit log."
            else:
                dialog.submit(reason.value.strip())

        if reason is not None:
            reason.on("keydown.enter", submit)
        with box("div", "actions"):
            secondary("Cancel", dialog.close)
            primary(action, submit, danger=danger)
    answer = await dialog
    dialog.delete()
    await viewer.check()
    return None if answer is None else str(answer)


@contextmanager
def form_dialog(
    title: str,
    action: str,
    viewer: Viewer,
    save: Callable[[], Awaitable[bool]],
    *,
    sub: str = "",
    wide: bool = False,
) -> Iterator[Dialog]:
    """A form in a dialog that opens at once; fields created inside belong to it.

    `save` runs through `viewer.act` and returns whether the dialog may close. When it raises, the error is shown and
    the form stays open, unless the act waits for an approval.
    """
    with _frame(title, wide=wide) as dialog:
        if sub:
            Text("p", sub, "muted")
        with box("div", "stack"):
            yield dialog

        async def submit() -> None:
            button.disable()
            try:
                if await save():
                    dialog.close()
            except WaitsForApproval:
                dialog.close()
                raise
            finally:
                button.enable()

        with box("div", "actions"):
            secondary("Cancel", dialog.close)
            button = primary(action, viewer.act(submit))
    dialog.on("hide", dialog.delete)
    dialog.open()


def show_secret(title: str, body: str, secret: str, closed: Callable[[], object] | None = None) -> None:
    """Show a secret that cannot be shown again, until the user dismisses the dialog; then call `closed`."""
    # Created outside the calling form, which is deleted while this dialog stays open.
    with ui.context.client.content, _frame(title) as dialog:
        dialog.props("persistent")
        Text("p", body, "muted")
        with box("div", "secret"):
            Text("code", secret)
            copy_button(secret)

        def done() -> None:
            dialog.close()

        with box("div", "actions"):
            primary("I have stored it", done)

    def gone() -> None:
        dialog.delete()
        if closed is not None:
            closed()

    dialog.on("hide", gone)
    dialog.open()
