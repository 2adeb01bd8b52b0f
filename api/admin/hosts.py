"""Admin API: invitations with which hosts join."""

from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from admin import host_joining
from admin.actor import Actor
from api.admin.deps import AdminDeps, Reason, ReasonBody, RequestBody, ResponseModel
from scheduler.authority import known_fingerprint


class InvitationOut(ResponseModel):
    """A host that was invited to join."""

    host: str
    state: Literal["invited", "token expired", "own secret", "revoked"]
    invited_at: datetime
    expires_at: datetime | None = Field(
        description="Until when its token can be used; null = it was used, or has ended."
    )
    joined_at: datetime | None
    revoked_at: datetime | None
    rotates: bool = Field(description="Whether its agent was asked for another secret and has made none yet.")
    rotated_at: datetime | None = Field(description="When its secret was replaced last.")
    previous_until: datetime | None = Field(
        description="Until when the secret before that one holds, too; null = it has ended."
    )


class InvitationCreate(RequestBody):
    """The host that is to join, and how long its token can be used."""

    host: Annotated[str, Field(min_length=1, max_length=100, description="Its host id.", examples=["b300-1"])]
    valid_s: Annotated[int, Field(ge=1, le=host_joining.LONGEST // timedelta(seconds=1))] = 3600
    reason: Reason


class CreatedInvitationOut(ResponseModel):
    """A new invitation with its token, which is returned only once."""

    host: str
    token: str = Field(description="PENSTOCK_JOIN_TOKEN of the host's agent.")
    expires_at: datetime


class RevokedHostOut(ResponseModel):
    """A host whose secret and token have ended."""

    host: str


class RotationCreate(RequestBody):
    """How long the present secret holds beside the new one."""

    overlap_s: Annotated[
        int,
        Field(
            ge=host_joining.SHORTEST_OVERLAP // timedelta(seconds=1),
            le=host_joining.LONGEST_OVERLAP // timedelta(seconds=1),
        ),
    ] = 3600
    reason: Reason


class RotatingHostOut(ResponseModel):
    """A host whose agent was asked for another secret."""

    host: str
    overlap_s: float


def router(deps: AdminDeps) -> APIRouter:
    """Routes of hosts."""
    routes = deps.router("hosts")
    auth = Depends(deps.actor)

    @routes.get("/hosts/invitations", summary="List hosts that were invited, the newest invitation first")
    async def list_invitations(
        actor: Annotated[Actor, auth],
        revoked: Annotated[bool, Query(description="Those whose right to join has ended, too.")] = False,
    ) -> list[InvitationOut]:
        found = await host_joining.list_invitations(deps.database, actor, revoked=revoked)
        return [InvitationOut.model_validate(each) for each in found]

    @routes.post(
        "/hosts/invitations", status_code=201, summary="Invite a host; its token is returned only once"
    )
    async def invite_host(
        actor: Annotated[Actor, auth], body: InvitationCreate, response: Response
    ) -> CreatedInvitationOut:
        invited = await host_joining.invite(
            deps.database,
            actor,
            host=body.host,
            valid=timedelta(seconds=body.valid_s),
            reason=body.reason,
            authority=await known_fingerprint(deps.database, deps.settings),
        )
        response.headers["cache-control"] = "no-store"
        return CreatedInvitationOut.model_validate(invited)

    @routes.post("/hosts/{host}/revoke", summary="End a host's secret and join token")
    async def revoke_host(actor: Annotated[Actor, auth], host: str, body: ReasonBody) -> RevokedHostOut:
        revoked = await host_joining.revoke(deps.database, actor, host=host, reason=body.reason)
        return RevokedHostOut.model_validate(revoked)

    @routes.post(
        "/hosts/{host}/rotate", status_code=202, summary="Ask a host's agent for another secret of its own"
    )
    async def rotate_host(actor: Annotated[Actor, auth], host: str, body: RotationCreate) -> RotatingHostOut:
        rotating = await host_joining.rotate(
            deps.database, actor, host=host, overlap=timedelta(seconds=body.overlap_s), reason=body.reason
        )
        return RotatingHostOut.model_validate(rotating)

    return routes
