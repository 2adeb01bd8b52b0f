"""LoRA adapters of one organisation: list, upload, import from the hub, delete."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

from nicegui import ui

from admin.adapter_hub import import_adapter
from admin.adapter_upload import UPLOAD_S, Transfers
from admin.adapters import (
    AdapterLimits,
    AdapterView,
    adapter_bases,
    check_place,
    list_adapters,
    remove_adapter,
)
from billing.pricing.prices import PriceView
from console.components.base import box, card, notice
from console.components.dialogs import confirm, form_dialog, primary, secondary, text_input
from console.components.files import FileField, UploadProgress
from console.components.table import Cell, Column, Row, actions_cell, cell, data_table, set_rows
from console.deps import Console
from console.format import moment, per_mtok, sentence
from console.panels.prices import open_price_form
from console.viewer import Viewer, toast_ok
from core.errors import PenstockError
from tenants.roles import KEY_MANAGERS

UPLOAD_PATH = "/adapters/upload"
"""Where browsers send the files of an adapter."""
_COLUMNS = (
    Column("name", "Adapter"),
    Column("public", "Name in requests", sortable=False),
    Column("model", "Base model"),
    Column("state", "State"),
    Column("price", "Price per M tokens"),
    Column("size", "Size", numeric=True),
    Column("source", "Source"),
    Column("created", "Created", numeric=True),
)


def adapter_rows(
    adapters: Sequence[AdapterView],
    bases: Collection[str],
    now: datetime,
    acts: Sequence[tuple[str, str, str]] = (),
) -> list[Row]:
    """Table rows of adapters with what may be done to each; those of models beyond `bases` cannot be called."""
    rows = []
    for adapter in adapters:
        served = adapter.model in bases
        place, _, commit = adapter.source.partition("@")
        row: Row = {
            "id": str(adapter.id),
            "name": cell(adapter.name, sub=f"rank {adapter.rank}"),
            "public": cell(adapter.public_name, mono=True, text=True, copy=True),
            "model": cell(adapter.model, text=True),
            "state": cell("Ready", tone="ok")
            if served
            else cell("Not served", tone="warn", sub="its model is retired or takes none"),
            "price": price_cell(adapter.prices),
            "size": cell(size_text(adapter.bytes), sub=f"{adapter.bytes:,} bytes"),
            "source": cell("Upload") if not commit else cell(place, sub=f"commit {commit[:12]}", text=True),
            "created": cell(moment(adapter.created_at, now)),
        }
        if acts:
            row["acts"] = actions_cell(acts, f"adapter {adapter.name}")
        rows.append(row)
    return rows


def price_cell(prices: Sequence[PriceView]) -> Cell:
    """An adapter's own price in force, of the tier standard first, or that it costs what its model does."""
    own = sorted(
        (price for price in prices if price.status == "current"), key=lambda price: price.tier != "standard"
    )
    later = [price for price in prices if price.status == "scheduled"]
    if not own:
        return cell("As its model", sub="its own is scheduled" if later else "")
    first = own[0]
    rates = (first.input, first.cached_input, first.output, first.reasoning)
    others = ", ".join(f"{price.tier} has another" for price in own[1:])
    return cell(" / ".join(per_mtok(rate).text for rate in rates), sub=others or first.tier)


def size_text(size: int) -> str:
    """A number of bytes in kilobytes or megabytes, of which limits have 1,000,000 bytes."""
    return f"{size / 1e3:,.1f} kB" if size < 1_000_000 else f"{size / 1e6:,.1f} MB"


async def adapters_panel(console: Console, viewer: Viewer, tenant_id: UUID) -> None:
    """Draw the adapters of an organisation for the platform's own people."""
    await AdaptersPanel(console, viewer, tenant_id).draw()


class AdaptersPanel:
    """The table of adapters with its acts; `transfers` are the process's uploads and imports."""

    def __init__(
        self, console: Console, viewer: Viewer, tenant_id: UUID, transfers: Transfers | None = None
    ) -> None:
        self._console = console
        self._viewer = viewer
        self._tenant_id = tenant_id
        self._transfers = transfers or Transfers()
        self._limits = AdapterLimits.of(console.settings)
        self._adapters: list[AdapterView] = []
        self._bases: list[str] = []
        self._table: ui.table

    @property
    def _acts(self) -> list[tuple[str, str, str]]:
        """What the viewer may do to an adapter."""
        priced = [("price", "Set price", "")] if self._viewer.may_bill else []
        return priced + ([("delete", "Delete", "bad")] if self._viewer.role in KEY_MANAGERS else [])

    def add_buttons(self) -> None:
        """Draw the buttons of the page's headline."""
        secondary("Import from the hub", self._viewer.act(self._open_import), icon="cloud_download")
        primary("Upload adapter", self._viewer.act(self._open_upload), icon="upload")

    async def draw(self) -> None:
        """Read the adapters and draw their table."""
        await self._read()
        most = f"At most {self._limits.count} of {size_text(self._limits.bytes)} each."
        with card("LoRA adapters", most, flush=True):
            self._table = data_table(
                [*_COLUMNS, Column("acts", "")] if self._acts else _COLUMNS,
                self._rows(),
                label="LoRA adapters",
                nothing="No adapter yet."
                if self._bases
                else "No adapter yet. No model that is offered takes adapters at present.",
                sort_by="name",
                on_action=self._viewer.act(self._act),
            )

    async def _read(self) -> None:
        database, actor = self._console.database, self._viewer.actor
        self._adapters, self._bases = await asyncio.gather(
            list_adapters(database, actor, tenant_id=self._tenant_id), adapter_bases(database, actor)
        )

    def _rows(self) -> list[Row]:
        return adapter_rows(self._adapters, self._bases, self._console.clock.now(), self._acts)

    async def _reload(self) -> None:
        await self._read()
        set_rows(self._table, self._rows())

    async def _act(self, act: str, row: str) -> None:
        """Set the price of the adapter of a row, or delete it."""
        adapter = next((one for one in self._adapters if str(one.id) == row), None)
        if adapter is not None and act == "price":
            open_price_form(
                self._console,
                self._viewer,
                [adapter.public_name],
                {},
                self._reload,
                everyone="Its organisation",
            )
        elif adapter is not None:
            await self._delete(adapter)

    async def _delete(self, adapter: AdapterView) -> None:
        """Delete an adapter after a confirmation."""
        reason = await confirm(
            self._viewer,
            f"Delete {adapter.name}?",
            f"New requests for {adapter.public_name} get 404 within seconds; those that run end as they would. "
            "Its files are removed.",
            "Delete",
            danger=True,
        )
        if reason is None:
            return
        await remove_adapter(
            self._console.database,
            self._viewer.actor,
            adapter_id=adapter.id,
            tenant_id=self._tenant_id,
            reason=reason,
        )
        toast_ok(f"{adapter.name} is deleted.")
        await self._reload()

    async def _open_upload(self) -> None:
        """Open the form of an upload; the browser sends the files to UPLOAD_PATH."""

        async def save() -> bool:
            place.clear()
            given = (str(model.value or ""), (name.value or "").strip())
            try:
                await check_place(self._console.database, self._tenant_id, *given, self._limits)
            except PenstockError as error:
                await self._viewer.refused("add an adapter", error)
                _refuse(place, error.message)
                return False
            told = await progress.send(
                UPLOAD_PATH,
                {"model": given[0], "name": given[1]},
                [config, weights],
                most_bytes=self._limits.bytes,
                most_s=UPLOAD_S,
            )
            await self._reload()
            if told.status != 201:
                _refuse(place, told.message)
                return False
            toast_ok(f"{given[1]} is stored. Requests name it {told.message}.")
            return True

        with form_dialog(
            "Upload adapter",
            "Upload",
            self._viewer,
            save,
            sub=f"The two files that PEFT writes, together at most {size_text(self._limits.bytes)}.",
        ):
            model, name = self._model_and_name()
            config = FileField("adapter_config.json", name="config", accept=".json")
            weights = FileField("adapter_model.safetensors", name="weights", accept=".safetensors")
            progress = UploadProgress("Sent")
            place = box("div", "stack")

    async def _open_import(self) -> None:
        """Open the form of an import from the model hub."""

        async def save() -> bool:
            place.clear()
            try:
                async with self._transfers.slot(self._console.settings) as limits:
                    made = await import_adapter(
                        self._console.database,
                        self._viewer.actor,
                        tenant_id=self._tenant_id,
                        model=str(model.value or ""),
                        name=(name.value or "").strip(),
                        repository=(repository.value or "").strip(),
                        revision=(revision.value or "").strip() or "main",
                        limits=limits,
                    )
            except PenstockError as error:
                await self._viewer.refused("add an adapter", error)
                _refuse(place, error.message)
                return False
            await self._reload()
            toast_ok(f"{made.name} is stored. Requests name it {made.public_name}.")
            return True

        with form_dialog(
            "Import adapter from the hub",
            "Import",
            self._viewer,
            save,
            sub="Its files are fetched once, from the commit that the revision means now.",
        ):
            model, name = self._model_and_name()
            with box("div", "fields"):
                repository = text_input("Repository").props("maxlength=200 placeholder=OWNER/NAME")
                revision = text_input("Revision", hint="Empty: main.").props("maxlength=200")
            place = box("div", "stack")

    def _model_and_name(self) -> tuple[ui.select, ui.input]:
        first = self._bases[0] if self._bases else None
        with box("div", "fields"):
            model = ui.select(list(self._bases), value=first, label="Base model").props("outlined dense")
            name = text_input("Name", hint="Small letters, digits and hyphens.").props(
                "autofocus maxlength=40"
            )
        return model, name


def _refuse(place: ui.element, message: str) -> None:
    """Show in the form why nothing was stored."""
    place.clear()
    with place:
        notice("bad", "Nothing was stored", sentence(message))
