"""Admin API: how long requests for a model wait while a replica wakes."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import Field

from admin import wake_deadlines
from admin.actor import Actor
from api.admin.deps import AdminDeps, RequestBody, ResponseModel

_SECONDS = (
    "Longest wait, in seconds, while a replica wakes or its host is created; null = the setting "
    "PENSTOCK_WAKE_DEADLINE_S."
)


class WakeDeadlineOut(ResponseModel):
    """The longest wait of a model's requests while none of its replicas is awake."""

    model: str
    wake_deadline_s: float | None = Field(description=_SECONDS)
    source: Literal["admin", "catalog", "setting"] = Field(description="Who set it.")


class WakeDeadlineUpdate(RequestBody):
    """Another deadline of a model."""

    model: str = Field(description="A model's name; it may contain slashes.", examples=["llama-3.3-70b"])
    wake_deadline_s: float | None = Field(
        description="0 to 600 seconds; null = as the catalog or the settings say.", examples=[300]
    )
    reason: str | None = None


def add_waking_routes(routes: APIRouter, deps: AdminDeps) -> None:
    """The routes of the deadlines for waking."""

    @routes.get("/models/wake-deadlines")
    async def list_wake_deadlines(
        actor: Annotated[Actor, Depends(deps.actor)], model: str | None = None
    ) -> list[WakeDeadlineOut]:
        """How long requests for the offered models, or for one, wait while a replica wakes."""
        found = await wake_deadlines.list_wake_deadlines(deps.database, actor, model=model)
        return [WakeDeadlineOut.model_validate(view) for view in found]

    @routes.put("/models/wake-deadlines")
    async def set_wake_deadline(
        body: WakeDeadlineUpdate, actor: Annotated[Actor, Depends(deps.actor)]
    ) -> WakeDeadlineOut:
        """Change how long requests for a model wait while a replica wakes. API processes follow within seconds."""
        view = await wake_deadlines.set_wake_deadline(deps.database, actor, **body.model_dump())
        return WakeDeadlineOut.model_validate(view)
