"""GET /v1/organization/usage/completions and /v1/organization/costs: OpenAI's shapes.

As with OpenAI, these endpoints need an admin token (`pen_admin_...`), not an API key. The token of a member of an
organisation gives access to that organisation; with a token of the platform, the header `OpenAI-Organization` names
one. Lists may be sent as `group_by=model` or, as OpenAI's clients do, as `group_by[]=model`.
"""

import time
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from admin import organization_usage
from admin.actor import Actor
from api.admin.deps import ERROR_RESPONSES, AdminDeps, SizeLimitedRoute
from billing.exports.openai_usage import UsageQuery
from core.errors import AuthenticationFailed, InvalidRequest, PermissionDenied
from tenants.key_format import secret_kind

MAX_UNIX_SECONDS = 253_402_300_799
"""Largest accepted time in seconds since 1970: the last second of the year 9999."""

member_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="Organisation's admin token",
    description="`Authorization: Bearer pen_admin_...`: a token of a person of the organisation.",
)
UnixSeconds = Annotated[int, Query(ge=0, le=MAX_UNIX_SECONDS)]
_LIST_NAMES = ("project_ids", "user_ids", "api_key_ids", "models", "group_by")


class _ListParameters(msgspec.Struct):
    """Query parameters that may be repeated, with and without brackets."""

    project_ids: tuple[str, ...] = ()
    user_ids: tuple[str, ...] = ()
    api_key_ids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    group_by: tuple[str, ...] = ()


def _list_parameters(request: Request) -> _ListParameters:
    params = request.query_params
    return _ListParameters(
        **{name: (*params.getlist(name), *params.getlist(f"{name}[]")) for name in _LIST_NAMES}
    )


def _openapi_parameters(*names: str) -> dict[str, Any]:
    """The list parameters for the OpenAPI document."""
    return {
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "array", "items": {"type": "string"}}}
            for name in names
        ]
    }


def router(deps: AdminDeps) -> APIRouter:
    """The usage and the costs endpoint."""
    routes = APIRouter(
        prefix="/v1/organization",
        tags=["organization"],
        responses=ERROR_RESPONSES,
        route_class=SizeLimitedRoute,
    )

    async def actor(
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(member_bearer)] = None,
    ) -> Actor:
        return await member_actor(deps, credentials, request)

    @routes.get(
        "/usage/completions",
        summary="Usage in buckets of time",
        openapi_extra=_openapi_parameters(*_LIST_NAMES),
        response_model=None,
    )
    async def usage(
        actor: Annotated[Actor, Depends(actor)],
        lists: Annotated[_ListParameters, Depends(_list_parameters)],
        start_time: UnixSeconds,
        end_time: UnixSeconds | None = None,
        bucket_width: Literal["1m", "1h", "1d"] = "1d",
        batch: bool | None = None,
        limit: int | None = None,
        page: Annotated[str | None, Query(max_length=100)] = None,
        organization: Annotated[str | None, Header(alias="OpenAI-Organization", max_length=100)] = None,
    ) -> Response:
        query = _query(lists, start_time, end_time, width=bucket_width, batch=batch, limit=limit, page=page)
        found = await organization_usage.completions_usage(
            deps.for_customers, actor, tenant_id=_tenant(organization), query=query
        )
        return Response(msgspec.json.encode(found), media_type="application/json")

    @routes.get(
        "/costs",
        summary="Costs by UTC day",
        openapi_extra=_openapi_parameters("project_ids", "user_ids", "api_key_ids", "group_by"),
        response_model=None,
    )
    async def costs(
        actor: Annotated[Actor, Depends(actor)],
        lists: Annotated[_ListParameters, Depends(_list_parameters)],
        start_time: UnixSeconds,
        end_time: UnixSeconds | None = None,
        bucket_width: Literal["1d"] = "1d",
        limit: int | None = None,
        page: Annotated[str | None, Query(max_length=100)] = None,
        organization: Annotated[str | None, Header(alias="OpenAI-Organization", max_length=100)] = None,
    ) -> Response:
        query = _query(lists, start_time, end_time, width=bucket_width, limit=limit, page=page)
        found = await organization_usage.costs(
            deps.for_customers, actor, tenant_id=_tenant(organization), query=query
        )
        return Response(msgspec.json.encode(found), media_type="application/json")

    return routes


async def member_actor(
    deps: AdminDeps, credentials: HTTPAuthorizationCredentials | None, request: Request
) -> Actor:
    """Return the owner of an admin token, of an organisation or the platform, for a request.

    Raises AuthenticationFailed, PermissionDenied for an API key or a token without the scope, or Unavailable.
    """
    if credentials is None:
        raise AuthenticationFailed(
            "This needs an admin token: send `Authorization: Bearer pen_admin_...`.",
            code="missing_admin_token",
        )
    if secret_kind(credentials.credentials) in ("live", "test"):
        raise PermissionDenied(
            "This takes an admin token of the organisation (pen_admin_...), not an API key; members "
            "make one in the console."
        )
    return await deps.person_of(credentials.credentials, request)


def _query(lists: _ListParameters, start: int, end: int | None, **more: Any) -> UsageQuery:
    until = int(time.time()) + 1 if end is None else end
    return UsageQuery(
        start=datetime.fromtimestamp(start, UTC),
        end=datetime.fromtimestamp(until, UTC),
        **msgspec.structs.asdict(lists),
        **more,
    )


def _tenant(organization: str | None) -> UUID | None:
    if organization is None:
        return None
    try:
        return UUID(organization)
    except ValueError:
        raise InvalidRequest(
            "OpenAI-Organization must be the id of an organisation", param="OpenAI-Organization"
        ) from None
