"""Flash messages: confirmations that survive a reload of the page."""

import json

from nicegui import ui


def reload_with(message: str) -> None:
    """Reload the page, so that all parts show the change, and show `message` afterwards (static/console.js)."""
    ui.run_javascript(f"sessionStorage.setItem('penstock_done', {json.dumps(message)}); location.reload()")
