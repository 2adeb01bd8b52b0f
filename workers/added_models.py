"""Models that admins have added: entries of the catalog that are rows of PostgreSQL.

Every process that knows the catalog reads them every POLL_S seconds beside it. The entries of the packaged catalog go
first. A retired model keeps its entry, because past hours are shared out by it.
"""

import logging
import time
from collections.abc import Callable, Mapping

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from core.polled_snapshot import PolledSnapshot
from core.supervise import supervise
from workers.catalog import Catalog, CatalogModel, load_catalog
from workers.tables import added_models

POLL_S = 2.0
"""Seconds between two reads."""

log = logging.getLogger(__name__)


class AddedModels:
    """Reads the added models, and decodes only those that have changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, CatalogModel | None]] = {}

    async def read(self, connection: AsyncConnection) -> dict[str, CatalogModel]:
        """By name. An entry that this release cannot read is left out, and logged when it is first seen."""
        rows = await connection.execute(
            select(added_models.c.name, added_models.c.definition).order_by(added_models.c.name)
        )
        known = {row.name: self._entry(row.name, row.definition) for row in rows}
        self._known = known
        return {name: model for name, (_, model) in known.items() if model is not None}

    def _entry(self, name: str, definition: str) -> tuple[str, CatalogModel | None]:
        before = self._known.get(name)
        if before is not None and before[0] == definition:
            return before
        try:
            return definition, decode_model(definition)
        except msgspec.MsgspecError as error:
            log.error("the entry of the added model %s cannot be read by this release: %s", name, error)
            return definition, None


async def read_added(connection: AsyncConnection) -> dict[str, CatalogModel]:
    """The added models by name, retired ones included."""
    return await AddedModels().read(connection)


async def read_catalog(connection: AsyncConnection) -> Catalog:
    """The packaged catalog with the added models."""
    return with_added(load_catalog(), await read_added(connection))


def with_added(catalog: Catalog, added: Mapping[str, CatalogModel]) -> Catalog:
    """A catalog with further models; its own go first."""
    if not added:
        return catalog
    return msgspec.structs.replace(catalog, models={**added, **catalog.models})


def encode_model(model: CatalogModel) -> str:
    """A model as it is stored and sent."""
    return msgspec.json.encode(model).decode()


def decode_model(definition: str | bytes) -> CatalogModel:
    """The model that `encode_model` wrote. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(definition, type=CatalogModel)


class AddedModelDirectory(PolledSnapshot):
    """The added models for a process that must serve without PostgreSQL, too: the last ones stay in force."""

    def __init__(self, database: Database, *, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(
            database, "added models", task="added-models", every_s=POLL_S, max_age_s=float("inf"), now=now
        )
        self.models: Mapping[str, CatalogModel] = {}
        """By name."""
        self._reader = AddedModels()

    def entry_of(self, name: str) -> str:
        """The entry of a model as it is sent; empty when none of the name is known."""
        model = self.models.get(name)
        return "" if model is None else encode_model(model)

    async def start(self) -> None:
        """Read in the background, first after POLL_S: the scheduler serves without PostgreSQL, too."""
        self._task = supervise(self._task_name, self._poll)

    async def _read(self, connection: AsyncConnection) -> None:
        self.models = await self._reader.read(connection)
