"""Admin API: acts that wait for a second person, their decision, and which person a shell user is."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, Field

from admin import decisions, shell_users
from admin.actor import Actor
from api.admin.deps import AdminDeps, Decision, RequestBody, ResponseModel

ShellName = Annotated[str, Field(min_length=1, max_length=100, examples=["ada"])]


class ApprovalOut(ResponseModel):
    """An act that one person requested and another must approve."""

    id: UUID
    kind: str
    tenant_id: UUID | None
    facts: dict[str, Any]
    requested_by: str
    requested_by_id: str = Field(
        description="The user's id, or `shell:NAME` of a shell user without a person."
    )
    requested_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    decision: str | None


class ApprovalList(BaseModel):
    """Pending approvals, oldest first."""

    data: list[ApprovalOut]


class DecisionOut(ResponseModel):
    """A decided request, and what the act returned."""

    approval: ApprovalOut
    result: dict[str, Any] | None


class ShellUserOut(ResponseModel):
    """A user of a platform host's shell and the person behind it."""

    name: str
    user_id: UUID
    email: str
    mapped_at: datetime


class ShellUserList(BaseModel):
    """Shell users by name."""

    data: list[ShellUserOut]


class ShellUserClaim(RequestBody):
    """The name of one's own user in the operating system of a platform host."""

    name: ShellName


def router(deps: AdminDeps) -> APIRouter:
    """Routes of approvals and shell users."""
    routes = deps.router("billing")
    _approval_routes(routes, deps)
    _shell_routes(routes, deps)
    return routes


def _approval_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/approvals", summary="List pending approvals")
    async def list_approvals(
        actor: Annotated[Actor, auth],
        kind: Annotated[str | None, Query(max_length=100)] = None,
        tenant_id: UUID | None = None,
    ) -> ApprovalList:
        rows = await decisions.list_approvals(deps.database, actor, kind=kind, tenant_id=tenant_id)
        return ApprovalList(data=[ApprovalOut.model_validate(row) for row in rows])

    @routes.post(
        "/approvals/{approval_id}/decision",
        summary="Approve an act of another person, which carries it out, or reject it",
    )
    async def decide(actor: Annotated[Actor, auth], approval_id: UUID, body: Decision) -> DecisionOut:
        decided = await decisions.decide(
            deps.database, actor, approval_id=approval_id, approve=body.approve, reason=body.reason
        )
        return DecisionOut.model_validate(decided)


def _shell_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/shell-users", summary="List shell users of platform hosts and their people")
    async def list_shell_users(actor: Annotated[Actor, auth]) -> ShellUserList:
        rows = await shell_users.list_all(deps.database, actor)
        return ShellUserList(data=[ShellUserOut.model_validate(row) for row in rows])

    @routes.post("/shell-users", status_code=201, summary="Map one's own shell user to oneself")
    async def claim(actor: Annotated[Actor, auth], body: ShellUserClaim) -> ShellUserOut:
        return ShellUserOut.model_validate(await shell_users.claim(deps.database, actor, name=body.name))

    @routes.delete("/shell-users/{name}", status_code=204, summary="Release a shell user from its person")
    async def release(
        actor: Annotated[Actor, auth], name: Annotated[str, Path(min_length=1, max_length=100)]
    ) -> None:
        await shell_users.release(deps.database, actor, name=name)
