"""Lazy parts of a page: slow parts are drawn after the page has been sent."""

from collections.abc import Awaitable, Callable

from nicegui import ui

from console.components.base import Text, box
from console.viewer import Viewer


def lazy(viewer: Viewer, placeholder: str, draw: Callable[[], Awaitable[None]]) -> None:
    """Show `placeholder` until `draw` has finished; what it draws replaces the placeholder."""
    place = box("div", "stack parts")
    with place:
        Text("p", placeholder, "muted waiting").props["role"] = "status"

    async def fill() -> None:
        try:
            with place:
                await draw()
        finally:
            placeholder_text.delete()

    placeholder_text = place.default_slot.children[0]
    ui.timer(0.05, viewer.act(fill), once=True)
