"""Admin API: hosts from providers: desired, existing, their calls and costs, reclaims, and whose they are."""

from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from admin import host_costs, host_owners, hosts
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
    image: str = Field(description="From which it was made; empty = not known, or it has none.")
    silent_since: datetime | None = Field(
        description="Last heartbeat of one that joined and has fallen silent; null for others."
    )
    contract_id: UUID | None = Field(description="The contract that covers it now; null = none does.")


class HostCostOut(ResponseModel):
    """What the hosts of a kind cost in a month."""

    provider: str
    kind: str
    hosts: int
    cost_usd: str
    no_agent_usd: str


class DesiredHostsOut(ResponseModel):
    """How many hosts of a group there should be, and are."""

    provider: str
    region: str
    kind: str
    model: str = Field(description="The model that they are for; empty = none.")
    desired: int
    running: int
    coming: int = Field(description="Wanted and not running yet.")
    owner: Literal["person", "plan"] = Field(description="Who decides: a person or the autoscaler's plan.")
    expires_at: datetime | None = Field(description="Until when the person decides; null = until released.")
    image: str = Field(description="From which its hosts are made; empty = the provider's settings say.")
    outdated: int = Field(description="Hosts that were made from another image, and are replaced.")
    surge: bool = Field(description="Whether a new host comes before an old one is given up.")


class HostIntentOut(ResponseModel):
    """What was written down before the first call for a host, and how far it is."""

    name: str
    provider: str
    kind: str
    region: str
    model: str
    state: str
    wanted: bool
    why: str
    requested_at: datetime
    called_at: datetime | None
    calls: int
    failures: int
    next_at: datetime | None
    provider_id: str | None
    missing_since: datetime | None
    end_recorded: bool


class HostEventOut(ResponseModel):
    """A call of a provider with its result."""

    at: datetime
    provider: str
    host: str | None
    call: str
    outcome: str
    status: int
    detail: str
    provider_id: str | None
    usd_per_hour: str | None


class HostOwnerOut(ResponseModel):
    """Whose the hosts of a provider are."""

    provider: str
    fleet: str
    account: str
    database: str
    confirmed_at: datetime | None
    hosts_left: list[str] = Field(
        description="Hosts that this confirmation may have left behind: they run on and cost money."
    )


_Text = Annotated[str, Field(min_length=1, max_length=hosts.MAX_TEXT)]


class HostGroupRelease(RequestBody):
    """A group of hosts to leave to the autoscaler's plan."""

    provider: _Text = Field(examples=["digitalocean"])
    region: _Text = Field(examples=["nyc2"])
    kind: _Text = Field(description="The provider's name of the size.", examples=["gpu-h100x8-640gb"])
    model: str = Field(
        default="",
        max_length=hosts.MAX_TEXT,
        description="The model that they are for.",
        examples=["llama-3.3-70b"],
    )
    reason: Reason


class DesiredHostsUpdate(HostGroupRelease):
    """How many hosts of a group there should be."""

    count: int = Field(ge=0, le=hosts.MAX_HOSTS, description="0 destroys them.", examples=[2])
    hold_s: int | None = Field(
        default=None,
        ge=1,
        le=hosts.MAX_HOLD // timedelta(seconds=1),
        description="Seconds after which the autoscaler's plan decides; null = when it is released.",
    )


class HostImageUpdate(HostGroupRelease):
    """The image from which a group's hosts are made."""

    image: str = Field(
        max_length=hosts.MAX_TEXT,
        description="Id or slug at the provider; empty = its settings say, and no host is replaced.",
        examples=["183456789"],
    )
    surge: bool = Field(
        default=True,
        description="Whether a new host comes before an old one is given up, which needs room for it.",
    )


class HostsAdopt(RequestBody):
    """A change of fleet, account or database to confirm, as `/hosts/notices` names it."""

    provider: _Text = Field(examples=["digitalocean"])
    fleet: _Text = Field(examples=["production"])
    account: _Text = Field(examples=["5df3e3004a17e242b7c20ca6c9fc25b701a47ece"])
    leave_hosts: bool = Field(
        default=False,
        description="Leave hosts of another fleet or account behind, which run on and cost money.",
    )
    reason: Reason


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

    _add_desired_routes(routes, deps)
    _add_record_routes(routes, deps)
    _add_owner_routes(routes, deps)
    return routes


def _add_desired_routes(routes: APIRouter, deps: AdminDeps) -> None:
    """The routes of how many hosts there should be."""
    auth = Depends(deps.actor)

    @routes.get("/hosts/desired", summary="List how many hosts of each group there should be, and are")
    async def list_desired(actor: Annotated[Actor, auth]) -> list[DesiredHostsOut]:
        found = await hosts.list_desired(deps.database, actor)
        return [DesiredHostsOut.model_validate(each) for each in found]

    @routes.put("/hosts/desired", summary="Set how many hosts of a group there should be")
    async def set_desired(actor: Annotated[Actor, auth], body: DesiredHostsUpdate) -> DesiredHostsOut:
        """The next pass creates or destroys what differs. The autoscaler's plan leaves the group alone."""
        changed = await hosts.set_desired(
            deps.database,
            actor,
            **body.model_dump(exclude={"hold_s"}),
            hold_for=None if body.hold_s is None else timedelta(seconds=body.hold_s),
        )
        return DesiredHostsOut.model_validate(changed)

    @routes.put("/hosts/desired/image", summary="Set the image from which a group's hosts are made")
    async def set_image(actor: Annotated[Actor, auth], body: HostImageUpdate) -> DesiredHostsOut:
        """Hosts that were made from another image are drained and replaced, one at a time."""
        return DesiredHostsOut.model_validate(
            await hosts.set_image(deps.database, actor, **body.model_dump())
        )

    @routes.post(
        "/hosts/desired/release", summary="Leave a group of hosts to the autoscaler's plan, as it is"
    )
    async def release_desired(actor: Annotated[Actor, auth], body: HostGroupRelease) -> DesiredHostsOut:
        released = await hosts.release_desired(deps.database, actor, **body.model_dump())
        return DesiredHostsOut.model_validate(released)


def _add_record_routes(routes: APIRouter, deps: AdminDeps) -> None:
    """The routes of what was written down of providers and their answers."""
    auth = Depends(deps.actor)

    @routes.get("/hosts/intents", summary="List what was written down for each host, the newest first")
    async def list_intents(
        actor: Annotated[Actor, auth],
        ended: Annotated[bool, Query(description="Those of the past, too.")] = False,
    ) -> list[HostIntentOut]:
        found = await hosts.list_intents(deps.database, actor, ended=ended)
        return [HostIntentOut.model_validate(each) for each in found]

    @routes.get("/hosts/events", summary="List calls of providers with their results, the newest first")
    async def list_events(
        actor: Annotated[Actor, auth],
        host: Annotated[str | None, Query(max_length=200, description="Of one host only.")] = None,
        reads: Annotated[bool, Query(description="Calls that only look, too.")] = False,
        limit: Annotated[int, Query(ge=1, le=hosts.MAX_ROWS)] = 100,
    ) -> list[HostEventOut]:
        found = await hosts.list_events(deps.database, actor, name=host, reads=reads, limit=limit)
        return [HostEventOut.model_validate(each) for each in found]


def _add_owner_routes(routes: APIRouter, deps: AdminDeps) -> None:
    """The routes of whose the hosts are."""
    auth = Depends(deps.actor)

    @routes.get(
        "/hosts/notices", summary="List what passes have to say to a person, a line for each provider"
    )
    async def list_notices(actor: Annotated[Actor, auth]) -> list[str]:
        return await host_owners.list_notices(deps.database, actor)

    @routes.post("/hosts/adopt", summary="Confirm that a provider's hosts are this installation's alone")
    async def adopt(actor: Annotated[Actor, auth], body: HostsAdopt) -> HostOwnerOut:
        """Confirms a change of fleet, account or database. Stop the other installation first."""
        confirmed = await host_owners.adopt(deps.database, actor, **body.model_dump())
        return HostOwnerOut.model_validate(confirmed)
