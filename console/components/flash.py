"""Saying that an act is done on a page that is loaded again because of it."""

import json

from nicegui import ui


def reload_with(message: str) -> None:
    """Load the page again, so that all of it shows what the act changed, and say `message` there (console.js)."""
    ui.run_javascript(f"sessionStorage.setItem('penstock_done', {json.dumps(message)}); location.reload()")
