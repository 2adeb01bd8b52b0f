"""Billing of a customer: what is left, what was spent, and the prices that apply."""

from fastapi import Request

from console.components.base import page_head
from console.deps import Console
from console.panels.money import money_panel
from console.panels.prices import own_prices_panel
from console.viewer import Viewer


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the viewer's own account."""
    with page_head("Billing", "Your organisation's credit and prices, in US dollars without tax."):
        pass
    await money_panel(console, viewer, viewer.tenant_id)
    await own_prices_panel(console, viewer, viewer.tenant_id)
