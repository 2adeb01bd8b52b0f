"""GET /v1/models and /v1/models/{model}: OpenAI's shape, plus price, context and live replicas."""

import asyncio
from datetime import UTC, datetime
from typing import Any, Protocol

from fastapi import APIRouter, Request

from billing.pricing.prices import PriceView, list_prices
from core.db import Database
from core.errors import AuthenticationFailed, ModelNotFound, Unavailable
from scheduler.wire import PoolSnapshot
from tenants.keys import DATABASE_AWAY
from tenants.principal import Principal
from workers.models import ModelInfo
from workers.wire import ReplicaState

PRICES_TIMEOUT_S = 2.0
"""A database that takes longer to name the prices counts as away."""


class Directory(Protocol):
    """What these endpoints need of workers.models.ModelDirectory."""

    def list(self) -> list[ModelInfo]:
        """Every model customers may see."""

    def resolve(self, name: str) -> ModelInfo:
        """By name or alias. Raises ModelNotFound."""


class Keys(Protocol):
    """What these endpoints need of tenants.keys.KeyRing."""

    async def authenticate(self, raw: str) -> Principal:
        """Raises AuthenticationFailed or TenantSuspended."""


class Pools(Protocol):
    """What these endpoints need of scheduler.client.SchedulerClient."""

    def snapshot(self) -> PoolSnapshot:
        """Live state of all replicas."""


def router(directory: Directory, keys: Keys, pools: Pools, database: Database) -> APIRouter:
    """The models endpoints; both want an API key, since prices may be the caller's own."""
    routes = APIRouter(prefix="/v1", tags=["models"])

    async def caller(request: Request) -> Principal:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise AuthenticationFailed(
                "No API key: send it as 'Authorization: Bearer pen_live_...'.", code="missing_api_key"
            )
        return await keys.authenticate(token.strip())

    async def prices(principal: Principal) -> dict[str, PriceView]:
        """The price in force per model for this caller. Raises Unavailable when PostgreSQL does not answer in time."""
        reading = asyncio.create_task(_prices(database, principal))
        try:
            async with asyncio.timeout(PRICES_TIMEOUT_S):
                return await asyncio.shield(reading)  # a query is never cancelled in the middle
        except DATABASE_AWAY as error:
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise Unavailable(
                "The prices cannot be read at the moment. Try again shortly.", retry_after_s=1.0
            ) from error

    @routes.get("/models", summary="Models this key may use")
    async def list_models(request: Request) -> dict[str, Any]:
        """OpenAI's list object."""
        principal = await caller(request)
        books = await prices(principal)
        replicas = _replicas(pools.snapshot())
        shown = [model for model in directory.list() if _visible(model, principal)]
        return {
            "object": "list",
            "data": [_entry(model, books.get(model.name), replicas.get(model.name, {})) for model in shown],
        }

    @routes.get("/models/{model:path}", summary="One model")
    async def get_model(model: str, request: Request) -> dict[str, Any]:
        """OpenAI's model object; 404 with near matches when there is none."""
        principal = await caller(request)
        found = directory.resolve(model)
        if not _visible(found, principal):
            raise ModelNotFound(
                f"The model '{model}' does not exist for this key; see GET /v1/models.", param="model"
            )
        books = await prices(principal)
        replicas = _replicas(pools.snapshot())
        return _entry(found, books.get(found.name), replicas.get(found.name, {}))

    return routes


async def _prices(database: Database, principal: Principal) -> dict[str, PriceView]:
    """The price in force per model: the contract's before the list's."""
    async with database.read() as connection:
        versions = await list_prices(connection, tenant_id=principal.tenant_id)
    now = datetime.now(UTC)
    found: dict[str, PriceView] = {}
    for version in versions:
        if version.tier != principal.tier or datetime.fromisoformat(version.effective_from) > now:
            continue
        if version.model not in found or version.tenant_id is not None:
            found[version.model] = version
    return found


def _visible(model: ModelInfo, principal: Principal) -> bool:
    return principal.allowed_models is None or model.name in principal.allowed_models


def _replicas(snapshot: PoolSnapshot) -> dict[str, dict[str, int]]:
    """Live replicas by model: how many are ready, asleep or loading, and what they have to do."""
    found: dict[str, dict[str, int]] = {}
    for replica in snapshot.replicas:
        counts = found.setdefault(
            replica.model, {"ready": 0, "asleep": 0, "loading": 0, "running": 0, "waiting": 0}
        )
        if replica.state in (ReplicaState.READY, ReplicaState.ASLEEP, ReplicaState.LOADING):
            counts[replica.state.value] += 1
        counts["running"] += replica.running
        counts["waiting"] += replica.waiting
    return found


def _entry(model: ModelInfo, price: PriceView | None, replicas: dict[str, int]) -> dict[str, Any]:
    """OpenAI's four members first; the rest is ours."""
    entry: dict[str, Any] = {
        "id": model.name,
        "object": "model",
        "created": int(model.created_at.timestamp()),
        "owned_by": "penstock",
        "title": model.title,
        "status": model.status,
        "context_length": model.context_len,
        "max_output_tokens": model.max_output_tokens,
        "capabilities": list(model.capabilities),
        "region": model.region,
        "replicas": replicas,
        "pricing": None,
    }
    if price is not None:
        entry["pricing"] = {
            "currency": "USD",
            "per": "million tokens",
            "tier": price.tier,
            "input": price.input,
            "cached_input": price.cached_input,
            "output": price.output,
            "reasoning": price.reasoning,
        }
    return entry
