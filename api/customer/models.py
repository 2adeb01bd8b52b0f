"""GET /v1/models and /v1/models/{model}: OpenAI's objects with prices, state and speed. No database is asked."""

from typing import Any, Protocol

from fastapi import APIRouter, Request, Response

from api import credentials
from api.customer import anthropic
from api.customer.deprecation import Endings, deprecation_headers
from api.customer.model_views import ModelViews
from api.key_restrictions import KeyRestrictions
from tenants.principal import Principal


class Keys(Protocol):
    """The methods of tenants.keys.KeyRing that these endpoints use."""

    async def authenticate(self, raw: str) -> Principal:
        """Return the principal of a key. Raises AuthenticationFailed or TenantSuspended."""


def router(keys: Keys, views: ModelViews, endings: Endings, restrictions: KeyRestrictions) -> APIRouter:
    """The models endpoints. All need an API key, since prices may be those of the caller's contract."""
    routes = APIRouter(prefix="/v1", tags=["models"])

    async def caller(request: Request) -> Principal:
        key = credentials.sent_key(request.headers.raw)
        return restrictions.check(await keys.authenticate(key), request.scope, "models")

    @routes.get("/models", summary="Models this key may use")
    async def list_models(request: Request) -> dict[str, Any]:
        """OpenAI's list object; with the header anthropic-version, Anthropic's."""
        entries = views.all(await caller(request))
        if anthropic.speaks(request.scope):
            return anthropic.model_page(entries, request.query_params)
        return {"object": "list", "data": entries}

    @routes.get("/openrouter/models", summary="The models as a provider lists them for OpenRouter")
    async def list_for_openrouter(request: Request) -> dict[str, Any]:
        """Priced models at their list prices, in dollars per token."""
        return {"data": views.openrouter(await caller(request))}

    @routes.get("/models/{model:path}", summary="One model")
    async def get_model(model: str, request: Request, response: Response) -> dict[str, Any]:
        """OpenAI's model object, or Anthropic's; 404 with similar names when there is none."""
        principal = await caller(request)
        entry = views.one(model, principal)
        if (told := endings.deprecation(model, principal.allowed_models)) is not None:
            response.headers.raw.extend(deprecation_headers(told))
        return anthropic.model_object(entry) if anthropic.speaks(request.scope) else entry

    return routes
