"""The list that OpenRouter reads has the models that chat, each with what it can do."""

from datetime import UTC, datetime
from typing import Any, cast

from api.customer.model_views import ModelViews
from api.customer.prices import PriceBook
from billing.pricing.prices import PriceView
from scheduler.availability import Availability
from scheduler.wire import PoolSnapshot
from tests.support.gateway_fakes import principal
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
