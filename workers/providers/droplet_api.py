"""The operations of DigitalOcean's API that hosts need, and the parts of its responses that are read."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec


class ApiReply(msgspec.Struct, frozen=True):
    """A response of the API; names of headers are lower case."""

    status: int
    headers: Mapping[str, str]
    body: Any


class NoAnswer(Exception):
    """No response came; whether the request was carried out is not known."""


class DropletApi(Protocol):
    """The operations that are used. Each sends one request, once, and raises nothing but NoAnswer."""

    async def create(self, body: dict[str, Any]) -> ApiReply:
        """POST /v2/droplets"""

    async def list_droplets(self, query: Mapping[str, str | int]) -> ApiReply:
        """GET /v2/droplets"""

    async def destroy(self, droplet_id: int) -> ApiReply:
        """DELETE /v2/droplets/{droplet_id}"""

    async def list_actions(self, query: Mapping[str, str | int]) -> ApiReply:
        """GET /v2/actions"""

    async def list_sizes(self, query: Mapping[str, str | int]) -> ApiReply:
        """GET /v2/sizes"""

    async def account(self) -> ApiReply:
        """GET /v2/account"""

    async def close(self) -> None:
        """Close connections."""


class Size(msgspec.Struct):
    """A size of droplets."""

    price_hourly: float
    slug: str = ""


class Region(msgspec.Struct):
    """A region."""

    slug: str


class Image(msgspec.Struct):
    """The image of a droplet."""

    id: int = 0
    slug: str | None = None
    """None for a snapshot."""


class Droplet(msgspec.Struct):
    """A droplet."""

    id: int
    name: str
    status: str
    created_at: datetime
    size: Size
    size_slug: str
    region: Region
    tags: list[str]
    image: Image | None = None


class Pages(msgspec.Struct):
    """Where the next page is; empty = there is none."""

    next: str = ""


class Links(msgspec.Struct):
    """Links of a page."""

    pages: Pages = msgspec.field(default_factory=Pages)


class DropletPage(msgspec.Struct):
    """A page of droplets."""

    droplets: list[Droplet]
    links: Links = msgspec.field(default_factory=Links)


class Action(msgspec.Struct):
    """An entry of the account's list of actions."""

    status: str
    type: str
    started_at: datetime
    resource_type: str = ""
    completed_at: datetime | None = None
    resource_id: int | None = None


class ActionPage(msgspec.Struct):
    """A page of actions."""

    actions: list[Action]
    links: Links = msgspec.field(default_factory=Links)


class Created(msgspec.Struct):
    """The response to a create."""

    droplet: Droplet


class Error(msgspec.Struct):
    """The response to what was refused."""

    id: str = ""
    message: str = ""


class SizePage(msgspec.Struct):
    """A page of sizes."""

    sizes: list[Size]
    links: Links = msgspec.field(default_factory=Links)


class Team(msgspec.Struct):
    """The team that a token belongs to."""

    uuid: str = ""


class User(msgspec.Struct):
    """The user of a token, in a team or alone."""

    uuid: str
    team: Team = msgspec.field(default_factory=Team)


class AccountReply(msgspec.Struct):
    """The response that names the account."""

    account: User
