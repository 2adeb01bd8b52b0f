"""Admin API: the models that are offered."""

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
    """A model of the catalog to offer."""

    name: str = Field(description=_NAME, examples=["llama-3.3-70b"])
    note: str | None = None


class AliasUpdate(RequestBody):
    """An alias of a model."""

    name: str = Field(examples=["llama-latest"])
    target: str = Field(examples=["llama-3.3-70b"])


class ModelStatusUpdate(RequestBody):
    """A model to deprecate or retire."""

    name: str = Field(description=_NAME)
    note: str | None = Field(default=None, description="What customers should use instead.")


def router(deps: AdminDeps) -> APIRouter:
    """Routes of models. Names are sent in bodies, since they may contain slashes."""
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
        """Create or change an alias."""
        return ModelOut.model_validate(
            await models.set_alias(deps.database, actor, name=body.name, target=body.target)
        )

    @routes.post("/models/deprecate")
    async def deprecate_model(
        body: ModelStatusUpdate, actor: Annotated[Actor, Depends(deps.actor)]
    ) -> ModelOut:
        """Deprecate a model. It is still served."""
        return ModelOut.model_validate(
            await models.deprecate_model(deps.database, actor, name=body.name, note=body.note)
        )

    @routes.post("/models/retire")
    async def retire_model(body: ModelStatusUpdate, actor: Annotated[Actor, Depends(deps.actor)]) -> ModelOut:
        """Stop serving a model or an alias."""
        return ModelOut.model_validate(
            await models.retire_model(deps.database, actor, name=body.name, note=body.note)
        )

    return routes
