"""Parts of a page that take long to find out: the page is sent first, they follow."""

from collections.abc import Awaitable, Callable

from nicegui import ui

from console.components.base import Text, box
from console.viewer import Viewer


def lazy(viewer: Viewer, placeholder: str, draw: Callable[[], Awaitable[None]]) -> None:
    """Say `words` until `draw` has found out what to show; then what it draws stands here."""
    place = box("div", "stack parts")
    with place:
        Text("p", placeholder, "muted waiting").props["role"] = "status"

    async def fill() -> None:
        try:
            with place:
                await draw()
        finally:
            waiting.delete()

    waiting = place.default_slot.children[0]
    ui.timer(0.05, viewer.act(fill), once=True)
