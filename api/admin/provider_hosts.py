"""Admin API: hosts from providers, what they cost, and notices that a provider takes one back."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from admin import host_costs, hosts
from admin.actor import Actor
from api.admin.deps import AdminDeps, Reason, ReasonBody, RequestBody, ResponseModel
from billing.ledger.months import bounds, parse_month


class ProviderHostOut(ResponseModel):
    """A host that exists, or existed. Amounts are exact decimal dollars, as its provider bills it."""

    name: str
    provider: str
    kind: str
    region: str
    model: str
    status: str
    wanted: bool
    why: str = Field(description="Why it is not wanted any more, or how it ended.")
    created_at: datetime | None
    joined_at: datetime | None
    ended_at: datetime | None
    reclaim_at: datetime | None = Field(
        description="When its provider takes it back; null = there is no notice."
    )
    usd_per_hour: str | None
    cost_usd: str
    no_agent_usd: str = Field(
        description="The part of the cost for which no heartbeat of its agent accounts."
    )
    silent_since: datetime | None = Field(
        description="Last heartbeat of one that joined and has fallen silent; null for others."
    )


class HostCostOut(ResponseModel):
    """What the hosts of a kind cost in a month."""

    provider: str
    kind: str
    hosts: int
    cost_usd: str
    no_agent_usd: str


class ReclaimNotice(RequestBody):
    """A provider's notice that it takes a host back."""

    at: datetime = Field(
        description="When, with its zone, at most seven days ahead.", examples=["2026-11-27T18:00:00Z"]
    )
    reason: Reason


def router(deps: AdminDeps) -> APIRouter:
    """Routes of hosts from providers."""
    routes = deps.router("hosts")
    auth = Depends(deps.actor)

    @routes.get("/hosts", summary="List hosts with their price and cost, the newest first")
    async def list_hosts(
        actor: Annotated[Actor, auth],
        ended: Annotated[bool, Query(description="Those of the past, too.")] = False,
    ) -> list[ProviderHostOut]:
        found = await hosts.list_hosts(deps.database, actor, ended=ended)
        return [ProviderHostOut.model_validate(each) for each in found]

    @routes.get("/hosts/costs", summary="What hosts cost in a month, as their providers bill them")
    async def read_costs(
        actor: Annotated[Actor, auth], month: Annotated[str, Query(max_length=7, examples=["2026-11"])]
    ) -> list[HostCostOut]:
        start, end = bounds(parse_month(month))
        found = await host_costs.host_costs(deps.database, actor, start=start, end=end)
        return [HostCostOut.model_validate(each) for each in found]

    @routes.post("/hosts/{host}/reclaim", summary="Enter a provider's notice that it takes a host back")
    async def note_reclaim(actor: Annotated[Actor, auth], host: str, body: ReclaimNotice) -> ProviderHostOut:
        told = await hosts.note_reclaim(deps.database, actor, name=host, at=body.at, reason=body.reason)
        return ProviderHostOut.model_validate(told)

    @routes.post("/hosts/{host}/reclaim/cancel", summary="Withdraw a notice that was wrong")
    async def cancel_reclaim(actor: Annotated[Actor, auth], host: str, body: ReasonBody) -> ProviderHostOut:
        told = await hosts.note_reclaim(deps.database, actor, name=host, at=None, reason=body.reason)
        return ProviderHostOut.model_validate(told)

    return routes
