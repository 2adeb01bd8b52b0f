"""Admin REST: which models are offered."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field

from admin import models
from admin.actor import Actor
from api.admin.deps import AdminDeps, RequestBody, ResponseModel

_NAME = "A model's name; it may contain slashes."


class ModelOut(ResponseModel):
    """A model or an alias."""

    name: str
    status: str = Field(description="active, deprecated or retired")
    alias_of: str | None
    note: str | None
    created_at: datetime


class ModelCreate(RequestBody):
    """Offer a model of the catalog."""

    name: str = Field(description=_NAME, examples=["llama-3.3-70b"])
    note: str | None = None


class AliasUpdate(RequestBody):
    """Let a name stand for another model."""

    name: str = Field(examples=["llama-latest"])
    target: str = Field(examples=["llama-3.3-70b"])


class ModelStatusUpdate(RequestBody):
    """Deprecate or retire."""

    name: str = Field(description=_NAME)
    note: str | None = Field(default=None, description="What customers should use instead.")


def router(deps: AdminDeps) -> APIRouter:
    """Names travel in bodies, since they may contain slashes."""
    routes = deps.router("models")

    @routes.get("/models")
    async def list_models(actor: Annotated[Actor, Depends(deps.actor)]) -> list[ModelOut]:
        """Every model and alias, retired ones included."""
        return [ModelOut.model_validate(view) for view in await models.list_models(deps.database, actor)]

    @routes.post("/models", status_code=201)
    async def add_model(body: ModelCreate, actor: Annotated[Actor, Depends(deps.actor)]) -> ModelOut:
        """Offer a model of the catalog; a retired one is offered again."""
        return ModelOut.model_validate(
            await models.add_model(deps.database, actor, name=body.name, note=body.note)
        )

    @routes.put("/models/alias")
    async def set_alias(body: AliasUpdate, actor: Annotated[Actor, Depends(deps.actor)]) -> ModelOut:
        """Make or move an alias."""
        return ModelOut.model_validate(
            await models.set_alias(deps.database, actor, name=body.name, target=body.target)
        )

    @routes.post("/models/deprecate")
    async def deprecate_model(
        body: ModelStatusUpdate, actor: Annotated[Actor, Depends(deps.actor)]
    ) -> ModelOut:
        """Mark a model as going away; it still answers."""
        return ModelOut.model_validate(
            await models.deprecate_model(deps.database, actor, name=body.name, note=body.note)
        )

    @routes.post("/models/retire")
    async def retire_model(body: ModelStatusUpdate, actor: Annotated[Actor, Depends(deps.actor)]) -> ModelOut:
        """Take a model or an alias out of service."""
        return ModelOut.model_validate(
            await models.retire_model(deps.database, actor, name=body.name, note=body.note)
        )

    return routes
