"""Admin API: maintenance of the platform."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field

from admin import maintenance
from admin.actor import Actor
from api.admin.deps import AdminDeps, Reason, RequestBody, ResponseModel


class MaintenanceOut(ResponseModel):
    """A maintenance. Requests that begin meanwhile get 503 with the code `maintenance`, the notice and Retry-After."""

    notice: str
    began_at: datetime
    expected_end: datetime | None = Field(description="null = not stated. It does not end the maintenance.")


class MaintenanceBegin(RequestBody):
    """The notice to customers, and when the maintenance is expected to be over."""

    notice: str = Field(max_length=1000, examples=["Upgrade of the database until 04:00 UTC."])
    expected_end: datetime | None = None
    reason: Reason | None = None


class MaintenanceEnd(RequestBody):
    """Why it ends."""

    reason: Reason | None = None


def router(deps: AdminDeps) -> APIRouter:
    """Routes of maintenance."""
    routes = deps.router("maintenance")
    auth = Depends(deps.actor)

    @routes.get("/maintenance", summary="The maintenance in progress; null = requests are served")
    async def get_maintenance(actor: Annotated[Actor, auth]) -> MaintenanceOut | None:
        found = await maintenance.get_maintenance(deps.database, actor)
        return None if found is None else MaintenanceOut.model_validate(found)

    @routes.put("/maintenance", summary="Refuse requests that begin, with a notice; open answers go on")
    async def begin_maintenance(actor: Annotated[Actor, auth], body: MaintenanceBegin) -> MaintenanceOut:
        """During a maintenance this replaces its notice and its expected end."""
        return MaintenanceOut.model_validate(
            await maintenance.begin_maintenance(deps.database, actor, **body.model_dump())
        )

    @routes.post("/maintenance/end", summary="Serve requests again")
    async def end_maintenance(
        actor: Annotated[Actor, auth], body: MaintenanceEnd | None = None
    ) -> MaintenanceOut:
        """409 when there is no maintenance."""
        ended = await maintenance.end_maintenance(
            deps.database, actor, reason=body.reason if body is not None else None
        )
        return MaintenanceOut.model_validate(ended)

    return routes
