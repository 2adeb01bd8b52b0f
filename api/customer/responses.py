"""The routes of stored responses: read, delete, the items of the request. Each sees those of the key's project only."""

from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Query, Request, Response

from api.credentials import sent_key
from api.key_restrictions import KeyRestrictions
from core.errors import InvalidRequest, UnsupportedField
from gateway.dialects.responses.store import ResponseStore
from tenants.principal import Principal


class Keys(Protocol):
    """The methods of tenants.keys.KeyRing that these endpoints use."""

    async def authenticate(self, raw: str) -> Principal:
        """Return the principal of a key. Raises AuthenticationFailed or TenantSuspended."""


def router(keys: Keys, store: ResponseStore, restrictions: KeyRestrictions) -> APIRouter:
    """The routes under /v1/responses/{id}."""
    routes = APIRouter(prefix="/v1/responses", tags=["inference"])

    async def caller(request: Request) -> Principal:
        key = sent_key(request.scope["headers"])
        return restrictions.check(await keys.authenticate(key), request.scope, "inference")

    @routes.get("/{response_id}", summary="A stored response", response_model=None)
    async def get_response(request: Request, response_id: str, stream: bool = False) -> Response:
        """The response object as it was answered. It is not streamed again."""
        principal = await caller(request)
        if stream:
            raise UnsupportedField(
                "A stored response cannot be streamed; leave out 'stream'.", param="stream"
            )
        return Response(await store.get(principal, response_id), media_type="application/json")

    @routes.delete("/{response_id}", summary="Delete a stored response")
    async def delete_response(request: Request, response_id: str) -> dict[str, Any]:
        """Deletes the response and the items of its request. Responses that continue it cannot be continued then."""
        await store.delete(await caller(request), response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @routes.post("/{response_id}/cancel", summary="Cancel a response in the background", response_model=None)
    async def cancel_response(request: Request, response_id: str) -> Response:
        """Always 400 for a response that exists: none runs in the background."""
        await store.get(await caller(request), response_id)
        raise InvalidRequest(
            "Only responses that run in the background can be cancelled; close the connection of others.",
            code="not_cancellable",
        )

    @routes.get("/{response_id}/input_items", summary="The items of a response's request")
    async def list_input_items(
        request: Request,
        response_id: str,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> dict[str, Any]:
        """A page of the items that the request itself brought, without those of the responses that it continues."""
        items = await store.input_items(await caller(request), response_id)
        if order == "desc":
            items.reverse()
        if after is not None:
            places = [number for number, item in enumerate(items) if item["id"] == after]
            if not places:
                raise InvalidRequest(f"There is no item '{after[:80]}' in this response.", param="after")
            items = items[places[0] + 1 :]
        page = items[:limit]
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > limit,
        }

    return routes
