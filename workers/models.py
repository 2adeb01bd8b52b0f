"""The models that customers may use: rows of `models` joined with the catalog, in the memory of API processes.

A row of an external engine's model describes it itself, so that the catalog need not have it. What an alias, a
deprecated and a retired model are is in workers/model_life.py.
"""

import builtins
import difflib
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from prometheus_client import Gauge
from sqlalchemy import case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from core.errors import ModelNotFound, ModelRetired, Unavailable
from core.polled_snapshot import PolledSnapshot
from workers.adapters import NamedAdapter, model_of, read_names
from workers.added_models import AddedModels, with_added
from workers.catalog import Catalog, CatalogModel, load_catalog
from workers.maintenance import Maintenance, read_maintenance, refusal
from workers.model_life import Deprecation, ModelLife, deprecation_of, next_retirement, served_by
from workers.tables import models

POLL_S = 2.0
MAX_AGE_S = 600.0
"""Seconds for which the last models are used while they cannot be read, where no setting says otherwise."""

RETIRED_NOW = or_(
    models.c.status == "retired", func.coalesce(models.c.retires_at <= func.clock_timestamp(), False)
)
"""The condition of rows of `models` that are retired by the database's clock."""

AGE = Gauge("penstock_models_age_seconds", "Time since the models were last read from PostgreSQL.")


class ModelInfo(msgspec.Struct, frozen=True):
    """A model as the data plane uses it; `name` is never an alias."""

    name: str
    title: str
    context_len: int
    max_output_tokens: int
    status: str
    """active | deprecated"""
    capabilities: tuple[str, ...]
    region: str
    created_at: datetime
    aliases: tuple[str, ...] = ()
    toy: bool = False
    hub_id: str = ""
    """Name of the weights on the hub; empty = not there, or not known."""
    embedding_dimensions: int = 0
    """Numbers of a vector; 0 = not known, or the model gives none."""
    quantization: str | None = None
    """Number format of the weights, such as fp8; None = not known."""
    template_switches: dict[str, tuple[bool | int | str, ...]] = {}
    """Variables of the chat template that customers may set, and the values that each may have."""
    tool_parser: str = ""
    """The engines' parser of tool calls, by vLLM's name; empty = none, or not known."""
    wake_deadline_s: float | None = None
    """Longest wait for a replica that wakes or is created; None = the setting of the request's tier."""
    adapter: str = ""
    """The LoRA adapter of it that a request names, by its public name; empty = none."""


THINKING_SWITCHES: dict[str, tuple[bool | int | str, ...]] = {
    "thinking": (True, False),
    "enable_thinking": (True, False),
}
"""The switches of templates of models that reason, where nothing else is known. Templates ignore unknown variables."""
ENGINE_CAPABILITIES = ("json", "logprobs")
"""Capabilities of engines, which a model that describes itself and generates has beside its own."""
EMBEDDINGS = ("embeddings",)
"""The capabilities of a model that gives embeddings, and nothing else."""


class ModelSpec(msgspec.Struct, frozen=True):
    """What the data plane must know of a model that the catalog does not have."""

    context_len: int
    """Tokens of prompt and answer together."""
    max_output_tokens: int
    """Limit of output tokens for requests without max_tokens."""
    capabilities: tuple[str, ...] = ("chat", "completions", "tools")

    @classmethod
    def embedding(cls, context_len: int) -> "ModelSpec":
        """A model that gives embeddings, and nothing else: it has no output tokens."""
        return cls(context_len, 1, EMBEDDINGS)


class ModelRow(ModelLife, frozen=True, kw_only=True):
    """A row of `models`; its status is what holds now by the database's clock."""

    created_at: datetime
    spec: ModelSpec | None = None
    """None for an alias and for a model that the catalog describes."""
    wake_deadline_s: float | None = None
    """What an admin has set; None = nothing."""


async def read_models(connection: AsyncConnection) -> list[ModelRow]:
    """All rows, ordered by name."""
    status = case((RETIRED_NOW, "retired"), else_=models.c.status).label("status_now")
    rows = await connection.execute(select(models, status).order_by(models.c.name))
    return [
        ModelRow(
            name=row.name,
            status=row.status_now,
            alias_of=row.alias_of,
            note=row.note,
            deprecated_at=row.deprecated_at,
            retires_at=row.retires_at,
            replacement=row.replacement,
            redirected=row.redirected,
            created_at=row.created_at,
            spec=None
            if row.context_len is None
            else ModelSpec(row.context_len, row.max_output_tokens, tuple(row.capabilities)),
            wake_deadline_s=row.wake_deadline_s,
        )
        for row in rows
    ]


class _Names(msgspec.Struct, frozen=True):
    """What every name means until the next model retires."""

    by_name: dict[str, ModelInfo]
    """Models by their names, their aliases and the names of retired models that they replace."""
    models: list[ModelInfo]
    deprecations: dict[str, Deprecation]
    """By name, of those whose customers are told something."""
    until: datetime | None
    """When the next model retires; None = none has a date."""


class ModelDirectory(PolledSnapshot):
    """All models that customers may use, polled every 2 s. None is resolved when they are not `fresh`."""

    def __init__(
        self,
        database: Database,
        catalog: Catalog | None = None,
        *,
        max_age_s: float = MAX_AGE_S,
        now: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`now` returns monotonic seconds, `today` the time of day, with which dates of retirement are compared."""
        super().__init__(
            database, "models", task="model-directory", every_s=POLL_S, max_age_s=max_age_s, now=now
        )
        self.catalog = catalog or load_catalog()
        """The packaged catalog, since the first reading with the models that admins have added."""
        self._packaged, self._added = self.catalog, AddedModels()
        self._today = today
        self._rows: list[ModelRow] = []
        self._built = _Names({}, [], {}, None)
        self._adapters: dict[str, NamedAdapter] = {}
        self._maintenance: Maintenance | None = None

    async def start(self) -> None:
        """Read the models, then poll. Raises what `refresh` raises."""
        await super().start()
        AGE.set_function(lambda: self.age_s)

    async def _read(self, connection: AsyncConnection) -> None:
        rows = await read_models(connection)
        self.catalog = with_added(self._packaged, await self._added.read(connection))
        self._adapters = await read_names(connection)
        self._maintenance = await read_maintenance(connection)
        self._rows, self._built = rows, _build(rows, self.catalog, self._today())

    def _names(self) -> _Names:
        """What names mean now; made again from the rows in memory when a model retires."""
        until = self._built.until
        if until is not None and (now := self._today()) >= until:
            self._built = _build(self._rows, self.catalog, now)
        return self._built

    def check_serving(self) -> None:
        """Raise Unavailable while the platform is in maintenance."""
        if self._maintenance is not None:
            raise refusal(self._maintenance, self._today())

    def resolve(self, name: str, allowed: Collection[str] | None = None) -> ModelInfo:
        """A model by name or alias, or the one that replaces a retired model.

        Raises ModelNotFound with similar names; ModelRetired, for models that are among `allowed` (None = all); and
        Unavailable when none is `fresh`.
        """
        if not self.fresh:
            raise Unavailable(
                f"The list of models and prices has not been read for more than {self.max_age_s:.0f} s, so nothing is "
                "admitted; nothing was charged, try again shortly.",
                code="models_stale",
                retry_after_s=POLL_S,
            )
        names = self._names()
        found = names.by_name.get(name)
        if found is None:
            gone, known = self.deprecation(name, allowed), builtins.list(names.by_name)
            raise _not_found(name, known) if gone is None else _retired(name, gone, known)
        return found

    def resolve_for(self, name: str, tenant_id: UUID, allowed: Collection[str] | None = None) -> ModelInfo:
        """As `resolve`, or for the name of an adapter of the organisation, its model with that adapter.

        Raises ModelRetired, too, for an adapter whose model another one replaces.
        """
        named = self._adapters.get(name)
        if named is None or named.tenant_id != tenant_id:
            return self.resolve(name, allowed)
        found = self.resolve(named.model, allowed)
        if found.name != named.model:  # a replacement, which the adapter does not fit
            gone = self.deprecation(named.model, allowed)
            raise _not_found(name, []) if gone is None else _retired(name, gone, [])
        return msgspec.structs.replace(found, adapter=name)

    def adapters_of(self, tenant_id: UUID) -> "builtins.list[NamedAdapter]":
        """The adapters that an organisation may call, by public name."""
        return [each for each in self._adapters.values() if each.tenant_id == tenant_id]

    def deprecation(self, name: str, allowed: Collection[str] | None = None) -> Deprecation | None:
        """The end of a model or alias, for its users.

        None for one that stays or that is not known, and where neither the model that ends nor the one that answers is
        among `allowed` (None = all): responses to a key say nothing of models that it may not use.
        """
        names = self._names()
        told = names.deprecations.get(name) or names.deprecations.get(model_of(name))
        if told is None or allowed is None:
            return told
        serves = names.by_name.get(name)
        if (told.alias_of or told.model) in allowed or (serves is not None and serves.name in allowed):
            return told
        return None

    def largest_context(self, names: Collection[str] | None) -> int:
        """Context length, in tokens, of the largest model among `names`; None = of all models. 0 without any."""
        return max(
            (model.context_len for model in self.list() if names is None or model.name in names), default=0
        )

    def wake_deadline_s(self, name: str) -> float | None:
        """A model's own longest wait for a replica that wakes; None = it has none, or is not known."""
        known = self._names().by_name.get(name)
        return None if known is None else known.wake_deadline_s

    def list(self) -> builtins.list[ModelInfo]:
        """All models that customers may use, ordered by name, without aliases."""
        return self._names().models


def _build(rows: list[ModelRow], catalog: Catalog, now: datetime) -> _Names:
    lives = {row.name: row for row in rows}
    others: dict[str, list[str]] = {}
    for row in rows:
        target = served_by(row, lives, now)
        if target is not None and target != row.name:
            others.setdefault(target, []).append(row.name)
    deprecations = {row.name: told for row in rows if (told := deprecation_of(row, lives, now)) is not None}
    found: list[ModelInfo] = []
    by_name: dict[str, ModelInfo] = {}
    for row in rows:
        if row.alias_of is not None or row.is_retired(now):
            continue
        info = described(row, catalog, tuple(others.get(row.name, ())))
        if info is None:
            continue
        found.append(info)
        for name in (row.name, *info.aliases):
            by_name[name] = info
    return _Names(by_name, found, deprecations, next_retirement(rows, now))


def described(row: ModelRow, catalog: Catalog, aliases: tuple[str, ...] = ()) -> ModelInfo | None:
    """The model of a row; None when neither the row nor the catalog describes it."""
    entry = catalog.models.get(row.name)
    source = row.spec or entry
    if source is None:
        return None
    capabilities = tuple(source.capabilities)
    if row.spec is not None and row.spec.capabilities != EMBEDDINGS:
        capabilities = tuple(dict.fromkeys((*capabilities, *ENGINE_CAPABILITIES)))
    switches = THINKING_SWITCHES if "reasoning" in capabilities else {}
    if entry is not None and row.spec is None:
        switches = {switch: tuple(values) for switch, values in entry.template_switches.items()}
    return ModelInfo(
        name=row.name,
        title=entry.title if entry is not None else row.name,
        context_len=source.context_len,
        max_output_tokens=source.max_output_tokens,
        status=row.status,
        capabilities=capabilities,
        region=entry.region if entry is not None else "local",
        created_at=row.created_at,
        aliases=aliases,
        toy=entry is not None and entry.toy,
        hub_id=entry.hub_id if entry is not None and not entry.toy else "",
        embedding_dimensions=entry.embedding_dimensions if entry is not None else 0,
        quantization=entry.quantization if entry is not None else None,
        template_switches=switches,
        tool_parser=entry.tool_parser if entry is not None and row.spec is None else "",
        wake_deadline_s=wake_deadline_of(row, entry),
    )


def wake_deadline_of(row: ModelRow, entry: CatalogModel | None) -> float | None:
    """A model's own longest wait for a replica that wakes: an admin's, else the catalog's; None = it has none."""
    if row.wake_deadline_s is not None or entry is None:
        return row.wake_deadline_s
    return entry.wake_deadline_s


def lost_abilities(old: ModelInfo, new: ModelInfo) -> list[str]:
    """What requests to `old` may need and `new` does not have, in words."""
    lost = [ability for ability in old.capabilities if ability not in new.capabilities]
    if new.context_len < old.context_len:
        lost.append(f"a context of {old.context_len:,} tokens, of which it has {new.context_len:,}")
    lost += [
        f"the switch {name} of the chat template"
        for name, values in old.template_switches.items()
        if not set(values) <= set(new.template_switches.get(name, ()))
    ]
    if "embeddings" in new.capabilities and old.embedding_dimensions not in (0, new.embedding_dimensions):
        lost.append(f"vectors of {old.embedding_dimensions:,} numbers")
    return lost


def _retired(name: str, gone: Deprecation, known: list[str]) -> ModelRetired:
    since = "" if gone.retires_at is None else f" on {gone.retires_at:%Y-%m-%d}"
    replacement = gone.replacement if gone.replacement in known else None  # it may have been retired since
    instead = f" Use {replacement!r} instead." if replacement else ""
    note = f" {gone.note}" if gone.note else ""
    of = "" if gone.model == name else f", which the name {name[:100]!r} stood for,"
    return ModelRetired(
        f"The model {gone.model!r}{of} was retired{since}.{instead}{note} GET /v1/models lists the models you may use.",
        param="model",
        details={"replacement": replacement, "models_url": "/v1/models"},
    )


def _not_found(name: str, known: list[str]) -> ModelNotFound:
    shown = name[:100]
    near = difflib.get_close_matches(shown, known, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(item) for item in near)}?" if near else ""
    return ModelNotFound(
        f"There is no model {shown!r}.{hint} GET /v1/models lists the models you may use.",
        param="model",
        details={"near": near, "models_url": "/v1/models"},
    )
