"""A model as customers see it: its facts, prices, state and speed, all from the memory of this process."""

import builtins
from collections.abc import Collection
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

from api.customer.deprecation import Endings, deprecation_block
from api.customer.prices import PriceBook, PricesByTier, priced_as
from billing.pricing.prices import TIERS, PriceView
from core.errors import ModelNotFound
from core.money import per_mtok_to_pico_per_token, pico_to_usd
from scheduler.availability import Availability, ModelState, seconds
from scheduler.wire import PoolSnapshot, TierView
from tenants.principal import Principal
from workers.adapters import NamedAdapter
from workers.models import ModelInfo
from workers.wire import ReplicaState

SAMPLING_PARAMETERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "stop",
    "seed",
    "max_tokens",
    "logit_bias",
)
"""What every model accepts, by OpenRouter's names."""
FEATURES = {
    "tools": ("tools",),
    "json": ("json_mode", "structured_outputs"),
    "reasoning": ("reasoning",),
    "logprobs": ("logprobs",),
}
"""By capability: OpenRouter's names for it."""


class Directory(Endings, Protocol):
    """The methods of workers.models.ModelDirectory that are used here."""

    def list(self) -> list[ModelInfo]:
        """Return every model that is offered."""

    def resolve_for(self, name: str, tenant_id: UUID, allowed: Collection[str] | None = None) -> ModelInfo:
        """Return the model with this name or alias, or that of an organisation's adapter with this name.

        Raises ModelNotFound, and ModelRetired of models in `allowed`.
        """

    def adapters_of(self, tenant_id: UUID) -> builtins.list[NamedAdapter]:
        """Return the adapters that an organisation may call."""


class Pools(Protocol):
    """The methods of scheduler.client.SchedulerClient that are used here."""

    def snapshot(self) -> PoolSnapshot:
        """Return the live state of all replicas."""


class ModelViews:
    """The models as one key sees them. One per API process."""

    def __init__(
        self, directory: Directory, prices: PriceBook, availability: Availability, pools: Pools
    ) -> None:
        self._directory = directory
        self._prices = prices
        self._availability = availability
        self._pools = pools

    def all(self, principal: Principal) -> list[dict[str, Any]]:
        """The entries of all models that the key may use. Raises Unavailable without recent prices."""
        prices, live = self._prices.of(principal.tenant_id), _live(self._pools.snapshot())
        models = {model.name: model for model in self._directory.list() if _visible(model, principal)}

        def entry(model: ModelInfo, adapter: str = "") -> dict[str, Any]:
            own = priced_as(prices, model.name, adapter)
            return self._entry(model, principal.tier, own, live.get(model.name, _Live()))

        adapters = [
            _adapter_entry(entry(models[each.model], each.public_name), each)
            for each in self._directory.adapters_of(principal.tenant_id)
            if each.model in models
        ]
        return [*map(entry, models.values()), *adapters]

    def one(self, name: str, principal: Principal) -> dict[str, Any]:
        """The entry of a model by name or alias. Raises ModelNotFound, or Unavailable without recent prices."""
        model = self._directory.resolve_for(name, principal.tenant_id, principal.allowed_models)
        if not _visible(model, principal):
            raise ModelNotFound(
                f"The model '{name}' does not exist for this key; see GET /v1/models.", param="model"
            )
        prices = priced_as(self._prices.of(principal.tenant_id), model.name, model.adapter)
        live = _live(self._pools.snapshot()).get(model.name, _Live())
        entry = self._entry(model, principal.tier, prices, live)
        named = [
            each
            for each in self._directory.adapters_of(principal.tenant_id)
            if each.public_name == model.adapter
        ]
        return _adapter_entry(entry, named[0]) if named else entry

    def openrouter(self, principal: Principal) -> list[dict[str, Any]]:
        """The models that chat and have a price, with their list prices, as OpenRouter reads a provider's list."""
        prices = self._prices.of(None)
        found = []
        for model in self._directory.list():
            price = prices.get(model.name, {}).get("standard")
            if price is not None and "chat" in model.capabilities and _visible(model, principal):
                serves = self._availability.of(model.name).serves
                found.append(_openrouter_entry(model, price, ready=serves and not model.toy))
        return found

    def _entry(self, model: ModelInfo, tier: str, prices: PricesByTier, live: "_Live") -> dict[str, Any]:
        """OpenAI's four members, then our own."""
        state = self._availability.of(model.name)
        return {
            "id": model.name,
            "object": "model",
            "created": int(model.created_at.timestamp()),
            "owned_by": "penstock",
            "title": model.title,
            "aliases": list(model.aliases),
            "status": model.status if state.serves else "offline",
            "deprecation": deprecation_block(self._directory.deprecation(model.name)),
            "offline_since": seconds(state.offline_since_ms),
            "expected_at": seconds(state.expected_ms),
            "context_length": model.context_len,
            "max_output_tokens": model.max_output_tokens,
            "capabilities": list(model.capabilities),
            "quantization": model.quantization,
            "region": model.region,
            "regions": sorted(live.regions),
            "gpus": sorted(live.gpus),
            "replicas": live.counts,
            "pricing": _pricing(prices.get(tier)),
            "tiers": _tiers(prices, state),
        }


def _adapter_entry(entry: dict[str, Any], adapter: NamedAdapter) -> dict[str, Any]:
    """The entry of an adapter: that of its model at the adapter's prices, under its own name."""
    own = {
        "id": adapter.public_name,
        "created": int(adapter.created_at.timestamp()),
        "owned_by": "organization",
    }
    return entry | own | {"aliases": [], "parent": adapter.model}


def _visible(model: ModelInfo, principal: Principal) -> bool:
    return principal.allowed_models is None or model.name in principal.allowed_models


def _tiers(prices: PricesByTier, state: ModelState) -> dict[str, dict[str, Any]]:
    """Price, speed and availability of each tier that has a price or had requests; None = not known."""
    seen = {view.tier: view for view in state.tiers}
    unseen = TierView("")
    return {
        tier: {
            "pricing": _pricing(prices.get(tier)),
            "ttft_p50_s": _rounded(seen.get(tier, unseen).ttft_p50_s),
            "output_tokens_per_s": _rounded(seen.get(tier, unseen).tokens_per_s),
            "availability": _rounded(seen.get(tier, unseen).availability),
        }
        for tier in TIERS
        if tier in prices or tier in seen
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _pricing(price: PriceView | None) -> dict[str, str | None] | None:
    if price is None:
        return None
    return {
        "currency": price.currency,
        "per": "million tokens",
        "tier": price.tier,
        "input": price.input,
        "cached_input": price.cached_input,
        "output": price.output,
        "reasoning": price.reasoning,
    }


@dataclass(slots=True)
class _Live:
    """The live replicas of one model."""

    counts: dict[str, int] = field(default_factory=dict)
    """How many are ready, asleep or loading, and the requests that run and wait on them; empty = there is none."""
    regions: set[str] = field(default_factory=set)
    gpus: set[str] = field(default_factory=set)
    """Of those that are ready."""


def _live(snapshot: PoolSnapshot) -> dict[str, _Live]:
    """The live replicas by model."""
    found: dict[str, _Live] = {}
    for replica in snapshot.replicas:
        live = found.setdefault(replica.model, _Live())
        counts = live.counts = live.counts or {
            "ready": 0, "asleep": 0, "loading": 0, "running": 0, "waiting": 0
        }  # fmt: skip
        if replica.state is ReplicaState.READY:
            live.regions |= {replica.region} - {""}
            live.gpus |= {replica.gpu} - {""}
        if replica.state in (ReplicaState.READY, ReplicaState.ASLEEP, ReplicaState.LOADING):
            counts[replica.state.value] += 1
        counts["running"] += replica.running
        counts["waiting"] += replica.waiting
    return found


def _openrouter_entry(model: ModelInfo, price: PriceView, *, ready: bool) -> dict[str, Any]:
    features = [name for capability in model.capabilities for name in FEATURES.get(capability, ())]
    return {
        "id": model.name,
        "hugging_face_id": model.hub_id,
        "name": model.title,
        "created": int(model.created_at.timestamp()),
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "quantization": model.quantization or "unknown",
        "context_length": model.context_len,
        "max_output_length": model.max_output_tokens,
        "pricing": {
            "prompt": _per_token(price.input),
            "completion": _per_token(price.output),
            "image": "0",
            "request": "0",
            "input_cache_read": _per_token(price.cached_input),
        },
        "supported_sampling_parameters": list(SAMPLING_PARAMETERS),
        "supported_features": features,
        "is_ready": ready,
    }


def _per_token(per_mtok: str) -> str:
    """Decimal dollars per token of a price per million tokens."""
    return pico_to_usd(per_mtok_to_pico_per_token(Decimal(per_mtok)))
