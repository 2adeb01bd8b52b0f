"""Admin API: contracts for hosts."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends
from pydantic import Field

from admin import host_contracts
from admin.actor import Actor
from api.admin.deps import AdminDeps, Reason, RequestBody, ResponseModel
from billing.economics.host_prices import MAX_SOURCE

_HOUR = "A whole UTC hour."


class HostContractOut(ResponseModel):
    """Hosts of a kind that are paid for during a term, whether they run or not."""

    contract_id: UUID
    kind: str
    region: str = Field(description="In lower case; empty = any.")
    count: int
    starts_at: datetime
    ends_at: datetime | None = Field(description="null = until it is ended.")
    usd_per_hour: str = Field(description="Of one host, an exact decimal.")
    source: str
    state: Literal["scheduled", "running", "ended"]
    hosts: list[str] = Field(description="The hosts that it covers now, the oldest first.")


class HostContractCreate(RequestBody):
    """A contract for hosts to enter."""

    kind: str = Field(min_length=1, max_length=100, examples=["gpu-b300x8-2304gb-contracted"])
    region: str = Field(
        default="",
        max_length=host_contracts.MAX_REGION,
        description="Where the hosts have to be; empty = anywhere.",
        examples=["nyc2"],
    )
    count: int = Field(ge=1, le=host_contracts.MAX_HOSTS, description="Hosts.", examples=[2])
    starts_at: datetime | None = Field(
        default=None, description=f"{_HOUR} Default: the running hour.", examples=["2026-12-01T00:00:00Z"]
    )
    ends_at: datetime | None = Field(
        default=None, description=f"{_HOUR} null = until it is ended.", examples=["2027-12-01T00:00:00Z"]
    )
    usd_per_hour: str = Field(max_length=40, description="Of one host, a decimal.", examples=["48.00"])
    source: str = Field(
        min_length=1, max_length=MAX_SOURCE, description="Where it stands.", examples=["contract 17"]
    )
    reason: Reason


class HostContractEnd(RequestBody):
    """When a contract ends."""

    ends_at: datetime | None = Field(
        default=None,
        description=f"{_HOUR} Default: the end of the running hour. At its start, it never was.",
        examples=["2027-01-01T00:00:00Z"],
    )
    reason: Reason


def router(deps: AdminDeps) -> APIRouter:
    """Routes of contracts for hosts."""
    routes = deps.router("pools")
    auth = Depends(deps.actor)

    @routes.get("/pools/contracts", summary="List contracts for hosts with the hosts that they cover")
    async def list_host_contracts(actor: Annotated[Actor, auth]) -> list[HostContractOut]:
        found = await host_contracts.list_contracts(deps.database, actor)
        return [HostContractOut.model_validate(each) for each in found]

    @routes.post("/pools/contracts", status_code=201, summary="Enter a contract for hosts")
    async def add_host_contract(actor: Annotated[Actor, auth], body: HostContractCreate) -> HostContractOut:
        view = await host_contracts.add_contract(deps.database, actor, **body.model_dump())
        return HostContractOut.model_validate(view)

    @routes.post("/pools/contracts/{contract_id}/end", summary="Set when a contract for hosts ends")
    async def end_host_contract(
        actor: Annotated[Actor, auth], contract_id: UUID, body: HostContractEnd
    ) -> HostContractOut:
        view = await host_contracts.end_contract(
            deps.database, actor, contract_id=contract_id, ends_at=body.ends_at, reason=body.reason
        )
        return HostContractOut.model_validate(view)

    return routes
