"""GET /v1/models and /v1/models/{model}: OpenAI's objects with price, context length and live replicas."""

from typing import Any, Protocol

from fastapi import APIRouter, Request

from api.customer.prices import PriceCache
from billing.pricing.prices import PriceView
from core.errors import AuthenticationFailed, ModelNotFound
from scheduler.wire import PoolSnapshot
from tenants.principal import Principal
from workers.models import ModelInfo
from workers.wire import ReplicaState


class Directory(Protocol):
    """The methods of workers.models.ModelDirectory that these endpoints use."""

    def list(self) -> list[ModelInfo]:
        """Return every model that is offered."""

    def resolve(self, name: str) -> ModelInfo:
        """Return the model with this name or alias. Raises ModelNotFound."""


class Keys(Protocol):
    """The methods of tenants.keys.KeyRing that these endpoints use."""

    async def authenticate(self, raw: str) -> Principal:
        """Return the principal of a key. Raises AuthenticationFailed or TenantSuspended."""


class Pools(Protocol):
    """The methods of scheduler.client.SchedulerClient that these endpoints use."""

    def snapshot(self) -> PoolSnapshot:
        """Return the live state of all replicas."""


def router(directory: Directory, keys: Keys, pools: Pools, prices: PriceCache) -> APIRouter:
    """The models endpoints. Both need an API key, since prices may be those of the caller's contract."""
    routes = APIRouter(prefix="/v1", tags=["models"])

    async def caller(request: Request) -> Principal:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise AuthenticationFailed(
                "No API key: send it as 'Authorization: Bearer pen_live_...'.", code="missing_api_key"
            )
        return await keys.authenticate(token.strip())

    @routes.get("/models", summary="Models this key may use")
    async def list_models(request: Request) -> dict[str, Any]:
        """OpenAI's list object."""
        principal = await caller(request)
        books = await prices.of(principal)
        replicas = _replicas(pools.snapshot())
        shown = [model for model in directory.list() if _visible(model, principal)]
        return {
            "object": "list",
            "data": [_entry(model, books.get(model.name), replicas.get(model.name, {})) for model in shown],
        }

    @routes.get("/models/{model:path}", summary="One model")
    async def get_model(model: str, request: Request) -> dict[str, Any]:
        """OpenAI's model object; 404 with similar names when there is none."""
        principal = await caller(request)
        found = directory.resolve(model)
        if not _visible(found, principal):
            raise ModelNotFound(
                f"The model '{model}' does not exist for this key; see GET /v1/models.", param="model"
            )
        books = await prices.of(principal)
        replicas = _replicas(pools.snapshot())
        return _entry(found, books.get(found.name), replicas.get(found.name, {}))

    return routes


def _visible(model: ModelInfo, principal: Principal) -> bool:
    return principal.allowed_models is None or model.name in principal.allowed_models


def _replicas(snapshot: PoolSnapshot) -> dict[str, dict[str, int]]:
    """Live replicas by model: how many are ready, asleep or loading, and the requests that run and wait on them."""
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
    """The model's object: OpenAI's four members, then our own."""
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
