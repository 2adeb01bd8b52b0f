"""A LoRA adapter as answers show it."""

from datetime import datetime
from uuid import UUID

from pydantic import Field

from admin.adapters import AdapterView
from api.admin.deps import ResponseModel


class AdapterFileOut(ResponseModel):
    """A file of an adapter."""

    path: str
    size: int
    sha256: str


class AdapterPriceOut(ResponseModel):
    """An adapter's own price in one tier, in decimal dollars per million tokens."""

    tier: str
    input: str
    cached_input: str
    output: str
    reasoning: str
    effective_from: datetime
    effective_to: datetime | None
    status: str = Field(description="current or scheduled.")


class AdapterOut(ResponseModel):
    """A LoRA adapter."""

    id: UUID
    model: str
    name: str
    public_name: str = Field(description="The `model` of requests that use it.")
    source: str = Field(description="upload, or REPOSITORY@COMMIT of the hub.")
    rank: int
    bytes: int
    files: list[AdapterFileOut]
    created_at: datetime
    prices: list[AdapterPriceOut] = Field(description="Of its own; in a tier without one the model's holds.")


def shown(adapter: AdapterView) -> AdapterOut:
    """An adapter as it is answered."""
    return AdapterOut.model_validate(adapter, from_attributes=True)
