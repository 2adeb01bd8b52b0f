"""The routes of stored responses: read, stream again, cancel, delete, the items of the request.

Each sees those of the key's project only.
"""

import asyncio
from typing import Annotated, Any, Literal, Protocol

import msgspec
from fastapi import APIRouter, Query, Request, Response

from api.credentials import sent_key
from api.customer.response_stream import ResponseStreams
from api.key_restrictions import KeyRestrictions
from core.errors import InvalidRequest
from gateway.dialects.responses.events import ResponseEvents
from gateway.dialects.responses.running import RunningResponses
from gateway.dialects.responses.store import ResponseStore, request_id_of, unavailable
from gateway.dialects.responses.unbroken import FAILURES
from tenants.principal import Principal

CANCEL_WAIT_S = 5.0
"""Seconds that a cancellation waits for the response to end; its process sees it within half a second."""
CANCEL_POLL_S = 0.1
"""Seconds between two looks at a response that is being cancelled."""


class Keys(Protocol):
    """The methods of tenants.keys.KeyRing that these endpoints use."""

    async def authenticate(self, raw: str) -> Principal:
        """Return the principal of a key. Raises AuthenticationFailed or TenantSuspended."""


def router(
    keys: Keys,
    store: ResponseStore,
    running: RunningResponses,
    events: ResponseEvents,
    streams: ResponseStreams,
    restrictions: KeyRestrictions,
) -> APIRouter:
    """The routes under /v1/responses/{id}."""
    routes = APIRouter(prefix="/v1/responses", tags=["inference"])

    async def caller(request: Request) -> Principal:
        key = sent_key(request.scope["headers"])
        return restrictions.check(await keys.authenticate(key), request.scope, "inference")

    @routes.get("/{response_id}", summary="A stored response", response_model=None)
    async def get_response(
        request: Request,
        response_id: str,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response:
        """The response object as it is now. With `stream` the events of one in the background after the number
        `starting_after`, and those that follow."""
        principal = await caller(request)
        if stream:
            return await streams.open(
                principal, response_id, -1 if starting_after is None else starting_after
            )
        if starting_after is not None:
            raise InvalidRequest("'starting_after' needs 'stream=true'.", param="starting_after")
        return Response(await store.get(principal, response_id), media_type="application/json")

    @routes.delete("/{response_id}", summary="Delete a stored response")
    async def delete_response(request: Request, response_id: str) -> dict[str, Any]:
        """Deletes the response and the items of its request. Responses that continue it cannot be continued then.
        One that runs in the background ends."""
        await store.delete(await caller(request), response_id)
        if (request_id := request_id_of(response_id)) is not None:
            await events.delete(request_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @routes.post("/{response_id}/cancel", summary="Cancel a response in the background", response_model=None)
    async def cancel_response(request: Request, response_id: str) -> Response:
        """Ends a response in the background and returns it with what was generated until then, which is billed.
        One that has ended is returned as it is; 400 for one that does not run in the background."""
        principal = await caller(request)
        document = await store.get(principal, response_id)
        if not msgspec.json.decode(document)["background"]:
            raise InvalidRequest(
                "Only responses that run in the background can be cancelled; close the connection of others.",
                code="not_cancellable",
            )
        await _cancel(running, store, principal, response_id)
        return Response(await store.get(principal, response_id), media_type="application/json")

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
        return _page(items, limit, after)

    return routes


async def _cancel(
    running: RunningResponses, store: ResponseStore, principal: Principal, response_id: str
) -> None:
    """Ask for the end of a response and wait until it is there, at most CANCEL_WAIT_S. Raises Unavailable."""
    request_id = request_id_of(response_id)
    if request_id is None:
        return
    try:
        await running.cancel(principal, request_id)
    except FAILURES:
        raise unavailable() from None
    for _ in range(int(CANCEL_WAIT_S / CANCEL_POLL_S)):
        if not await store.runs(principal, response_id):
            return
        await asyncio.sleep(CANCEL_POLL_S)


def _page(items: list[dict[str, Any]], limit: int, after: str | None) -> dict[str, Any]:
    """A page of `items` that begins behind the one with the id `after`. Raises InvalidRequest when there is none."""
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
