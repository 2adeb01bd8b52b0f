"""Models, and list and contract prices: current, scheduled and ended."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from fastapi import Request
from nicegui import ui

from admin import models as admin_models
from admin import prices as admin_prices
from admin import tenants as admin_tenants
from admin.models import ModelView
from billing.pricing.prices import PriceView
from console.components.base import box, card, link_button, notice, page_head
from console.components.dialogs import primary, secondary
from console.components.table import Cell, Column, Row, cell, data_table, set_rows
from console.deps import Console
from console.format import count, moment
from console.panels.added_model import open_added_model_form
from console.panels.model_life import (
    acts_cell,
    open_alias_form,
    stands_for_cell,
    start_act,
    status_cell,
)
from console.panels.prices import COLUMNS, end_or_withdraw, open_price_form, price_rows, price_state
from console.panels.rollouts import RolloutsPanel
from console.viewer import Viewer
from scheduler.wire import PoolSnapshot
from workers.wire import ReplicaState

REFUSED_LOOKBACK = timedelta(days=7)
"""Period of the notice on requests that were refused because their model had no price."""
_COLUMNS = (
    Column("name", "Model"),
    Column("status", "Status"),
    Column("price", "List price"),
    Column("replicas", "Replicas ready", numeric=True),
    Column("stands", "Stands for"),
    Column("note", "Note", sortable=False),
    Column("created", "Added", numeric=True),
)


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the models and the price books."""
    page = _ModelsPage(console, viewer)
    await page.read()
    with page_head("Models and prices", "US dollars per million tokens. Times are UTC."):
        if viewer.is_admin:
            secondary("Add model", viewer.act(page.new_model), icon="add_box")
            secondary("New alias", viewer.act(page.new_alias), icon="alternate_email")
        if viewer.may_bill:
            link_button("Re-rate a past month", "/periods?tab=changes", "history")
            primary("New price", viewer.act(page.new_price), icon="add")
    page.alerts = box("div", "stack")
    with card("Models", flush=True):
        page.model_table = data_table(
            [*_COLUMNS, Column("acts", "")] if viewer.is_admin else _COLUMNS,
            page.model_rows(),
            label="Models",
            nothing="No model is offered yet.",
            sort_by="name",
            on_action=viewer.act(page.model_act),
        )
    page.rollouts = RolloutsPanel(console, viewer, lambda: scaled(page.models))
    await page.rollouts.reload()
    with card("Prices", "Contract prices go before list prices.", flush=True) as actions:
        with actions:
            history = ui.checkbox("Show ended prices")
        page.price_table = data_table(
            [*COLUMNS, Column("acts", "")] if viewer.may_bill else COLUMNS,
            page.price_rows(),
            label="Prices",
            nothing="No price is set yet.",
            sort_by="model",
            on_action=viewer.act(page.price_act),
        )

    async def toggle() -> None:
        page.history = bool(history.value)
        await page.reload()

    history.on_value_change(viewer.act(toggle))
    page.show_unpriced()


def unpriced(models: list[str], prices: list[PriceView], now: datetime) -> list[str]:
    """Offered models without a list price in effect at `now`; their requests are refused."""
    priced = {
        price.model
        for price in prices
        if price.tenant_id is None and price_state(price, now)[0] == "In force"
    }
    return sorted(set(models) - priced)


def offered(models: Sequence[ModelView]) -> list[str]:
    """Names of the models that customers can call, without aliases, which have no price of their own."""
    return [model.name for model in models if model.status != "retired" and not model.alias_of]


def scaled(models: Sequence[ModelView]) -> list[str]:
    """Names of the models whose engines Penstock runs, and may replace."""
    return [name for model in models if model.origin != "external" for name in offered([model])]


def _price_cell(model: ModelView, missing: set[str]) -> Cell:
    if model.alias_of is not None or model.status == "retired":
        return cell("–")
    return cell("Unpriced", tone="bad") if model.name in missing else cell("Priced", tone="ok")


class _ModelsPage:
    """The tables of models and of prices, which share one read."""

    def __init__(self, console: Console, viewer: Viewer) -> None:
        self.console = console
        self.viewer = viewer
        self.history = False
        self.alerts: ui.element
        self.model_table: ui.table
        self.price_table: ui.table
        self.rollouts: RolloutsPanel

    async def read(self) -> None:
        """Read models, prices, refused traffic and the names of tenants."""
        database, actor = self.console.database, self.viewer.actor
        since = self.console.clock.now() - REFUSED_LOOKBACK
        self.models, self.prices, tenants, self.refused = await asyncio.gather(
            admin_models.list_models(database, actor),
            admin_prices.list_prices(database, actor, history=self.history),
            admin_tenants.list_tenants(database, actor),
            admin_prices.unpriced(database, actor, start=since),
        )
        self.tenants = {tenant.id: tenant.name for tenant in tenants}

    async def reload(self) -> None:
        """Show the present state."""
        await self.read()
        set_rows(self.model_table, self.model_rows())
        set_rows(self.price_table, self.price_rows())
        await self.rollouts.reload()
        self.show_unpriced()

    def model_rows(self) -> list[Row]:
        """Rows of the models table."""
        now = self.console.clock.now()
        snapshot: PoolSnapshot = self.console.scheduler.snapshot()
        missing = set(self.unpriced_models())
        rows = []
        for model in self.models:
            ready = sum(
                one.model == model.name and one.state == ReplicaState.READY for one in snapshot.replicas
            )
            rows.append(
                {
                    "id": model.name,
                    "name": cell(model.name),
                    "status": status_cell(model),
                    "price": _price_cell(model, missing),
                    "replicas": cell(count(ready)),
                    "stands": stands_for_cell(model),
                    "note": cell(model.note or "–", wrap=True),
                    "created": cell(moment(model.created_at, now)),
                    "acts": acts_cell(model),
                }
            )
        return rows

    def price_rows(self) -> list[Row]:
        """Rows of the price books."""
        return price_rows(self.prices, self.console.clock.now(), self.tenants, with_acts=self.viewer.may_bill)

    async def model_act(self, act: str, row: str) -> None:
        """Open the form of an act on a model or an alias."""
        model = next((one for one in self.models if one.name == row), None)
        if model is not None:
            await start_act(self.console, self.viewer, act, model, offered(self.models), self.reload)

    async def new_model(self) -> None:
        """Open the form of a model that the catalog does not have."""
        open_added_model_form(self.console, self.viewer, self.reload)

    async def new_alias(self) -> None:
        """Open the form of an alias."""
        open_alias_form(self.console, self.viewer, offered(self.models), self.reload)

    async def price_act(self, act: str, row: str) -> None:
        """End or withdraw the price version of a row."""
        price = next((one for one in self.prices if str(one.id) == row), None)
        if price is not None and await end_or_withdraw(self.console, self.viewer, price, act):
            await self.reload()

    def unpriced_models(self) -> list[str]:
        """Offered models that have no price."""
        return unpriced(offered(self.models), self.prices, self.console.clock.now())

    def show_unpriced(self) -> None:
        """Show a notice for models without a price."""
        self.alerts.clear()
        with self.alerts:
            for name in self.unpriced_models():
                notice("bad", f"{name} has no list price", "Its requests are refused until one is in force.")
            for one in self.refused:
                if one.requests:
                    whose = (
                        "" if one.tenant_id is None else f" of {self.tenants.get(one.tenant_id, 'a tenant')}"
                    )
                    notice(
                        "bad",
                        f"{one.requests:,} requests{whose} for {one.model} ({one.tier}) were refused without a price",
                        f"The last at {one.last_at or 'an unknown time'}. Set a price if they are wanted.",
                    )

    async def new_price(self) -> None:
        """Open the form."""
        names = offered(self.models)
        tenants = {str(tenant_id): name for tenant_id, name in self.tenants.items()}
        open_price_form(self.console, self.viewer, names, tenants, self.reload)
