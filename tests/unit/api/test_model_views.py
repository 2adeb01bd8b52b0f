"""The list that OpenRouter reads has the models that chat, each with what it can do."""

import builtins
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from api.customer.model_views import ModelViews
from api.customer.prices import PriceBook
from billing.pricing.prices import PriceView
from scheduler.availability import Availability
from scheduler.wire import PoolSnapshot
from tests.support.gateway_fakes import principal
from workers.adapters import NamedAdapter
from workers.models import ModelInfo

PRICE = PriceView(
    1, "m", "standard", None, "1.00", "0.50", "2.00", "2.00", "2026-01-01", None, "a", "current", None, None
)


def model(name: str, *capabilities: str) -> ModelInfo:
    return ModelInfo(
        name, name, 8192, 4096, "active", capabilities, "local", datetime(2026, 1, 1, tzinfo=UTC)
    )


class Listed:
    """Two models that chat, and one that embeds; all have a price."""

    models = (
        model("full", "chat", "tools", "logprobs"),
        model("plain", "chat"),
        model("vectors", "embeddings"),
    )

    def list(self) -> list[ModelInfo]:
        return [*self.models]

    def resolve(self, name: str, allowed: object = None) -> ModelInfo:
        raise AssertionError(name)

    def of(self, tenant_id: object) -> dict[str, Any]:
        return {each.name: {"standard": PRICE} for each in self.models}

    def snapshot(self) -> PoolSnapshot:
        return PoolSnapshot()


def test_only_models_that_chat_are_listed_with_their_features() -> None:
    listed = Listed()
    views = ModelViews(
        listed, cast(PriceBook, listed), Availability(listed.snapshot, lambda model: 30.0), listed
    )
    entries = {entry["id"]: entry["supported_features"] for entry in views.openrouter(principal())}
    assert entries == {"full": ["tools", "logprobs"], "plain": []}


class WithAdapters(Listed):
    """One organisation has two adapters of a model, of which one has a price of its own in one tier."""

    adapters = tuple(
        NamedAdapter(
            f"full:{name}:abcd", principal().tenant_id, "full", name, datetime(2026, 2, 1, tzinfo=UTC)
        )
        for name in ("own", "plain")
    )

    def adapters_of(self, tenant_id: object) -> builtins.list[NamedAdapter]:
        return [*self.adapters]

    def resolve_for(self, name: str, tenant_id: object, allowed: object = None) -> ModelInfo:
        return msgspec.structs.replace(self.models[0], adapter=name)

    def deprecation(self, name: str, allowed: object = None) -> None:
        return None

    def of(self, tenant_id: object) -> dict[str, Any]:
        own = msgspec.structs.replace(PRICE, model="full:own:abcd", output="9.00")
        return super().of(tenant_id) | {
            "full": {"standard": PRICE, "batch": PRICE},
            "full:own:abcd": {"standard": own},
        }


def test_an_adapter_is_listed_at_its_own_price_and_where_it_has_none_at_the_models() -> None:
    listed = WithAdapters()
    views = ModelViews(
        listed, cast(PriceBook, listed), Availability(listed.snapshot, lambda model: 30.0), listed
    )
    found = {entry["id"]: entry for entry in views.all(principal())}
    outputs = {
        name: {tier: told["pricing"]["output"] for tier, told in found[name]["tiers"].items()}
        for name in ("full", "full:own:abcd", "full:plain:abcd")
    }
    assert outputs == {
        "full": {"standard": "2.00", "batch": "2.00"},
        "full:own:abcd": {"standard": "9.00", "batch": "2.00"},
        "full:plain:abcd": {"standard": "2.00", "batch": "2.00"},
    }
    assert found["full:own:abcd"]["pricing"]["output"] == "9.00"
    assert views.one("full:own:abcd", principal()) == found["full:own:abcd"]
