"""Hosts as droplets of DigitalOcean.

`GET /v2/droplets` lists droplets without GPUs only; `type=gpus` lists those with GPUs and cannot be combined with a
tag. So both a list of all GPU droplets, filtered here, and a list by tag make the fleet. Tags are put on a droplet
after it is created; until then it is known by its name. A droplet is destroyed, never powered off: powered off it costs
as much. Nothing is destroyed by tag, which would hit hosts without an intent.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Protocol, TypeVar

import msgspec

from core.errors import InvalidRequest
from core.money import usd_to_pico
from workers.providers.interface import (
    CallResult,
    Endings,
    HostRequest,
    HostStatus,
    Listing,
    ObservedHost,
    Outcome,
)

NAME = "digitalocean"
PER_PAGE = 200
MAX_PAGES = 20
MAX_DETAIL = 300
LOW_REMAINING = 20
"""Requests left in the hourly quota from which on calls are spread."""
SPREAD = timedelta(seconds=30)
"""Pause between passes while fewer are left."""
WITHOUT_HEADERS = timedelta(seconds=60)
"""Pause after a 429 that says nothing about time."""
MAX_USER_DATA = 64 * 1024
_PRICE_STEP = Decimal("0.00001")
_STATUS: Mapping[str, HostStatus] = {"new": "starting", "active": "running"}

T = TypeVar("T")


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

    async def close(self) -> None:
        """Close connections."""


class DropletOptions(msgspec.Struct, frozen=True):
    """What every droplet of the fleet is created with."""

    fleet: str
    """Name of this installation: first part of its droplets' names, and in the tag by which it knows them."""
    image: str = ""
    """Id or slug of the image; empty = DigitalOcean's base image for the kind of GPU."""
    ssh_keys: tuple[str, ...] = ()
    vpc_uuid: str = ""
    user_data: str = ""
    """Script or cloud-config for the first start, at most MAX_USER_DATA bytes."""

    @property
    def tag(self) -> str:
        """The tag of every droplet of the fleet."""
        return f"penstock-{self.fleet}"


class _Size(msgspec.Struct):
    price_hourly: float


class _Region(msgspec.Struct):
    slug: str


class _Droplet(msgspec.Struct):
    id: int
    name: str
    status: str
    created_at: datetime
    size: _Size
    size_slug: str
    region: _Region
    tags: list[str]


class _Pages(msgspec.Struct):
    next: str = ""


class _Links(msgspec.Struct):
    pages: _Pages = msgspec.field(default_factory=_Pages)


class _DropletPage(msgspec.Struct):
    droplets: list[_Droplet]
    links: _Links = msgspec.field(default_factory=_Links)


class _Action(msgspec.Struct):
    status: str
    type: str
    started_at: datetime
    resource_type: str = ""
    completed_at: datetime | None = None
    resource_id: int | None = None


class _ActionPage(msgspec.Struct):
    actions: list[_Action]
    links: _Links = msgspec.field(default_factory=_Links)


class _Created(msgspec.Struct):
    droplet: _Droplet


class _Error(msgspec.Struct):
    id: str = ""
    message: str = ""


def base_image(kind: str) -> str:
    """DigitalOcean's base image for a size: drivers and container toolkit for AMD, for 8 linked or for single GPUs."""
    if "-mi3" in kind:
        return "gpu-amd-base"
    if kind.startswith("gpu-"):
        return "gpu-h100x8-base" if "x8-" in kind else "gpu-h100x1-base"
    return "ubuntu-24-04-x64"


def price_pico(usd_per_hour: float) -> int:
    """Picodollars per hour of a price that the API wrote as a binary float of single precision.

    Prices have at most five decimals; 3.390000104904175 is 3.39.
    """
    exact = Decimal(repr(usd_per_hour)).quantize(_PRICE_STEP, rounding=ROUND_HALF_UP)
    return usd_to_pico(exact)


class DigitalOceanHosts:
    """The fleet's droplets. `now` is the instant in UTC, for the waits that responses ask for."""

    name = NAME

    def __init__(self, api: DropletApi, options: DropletOptions, now: Callable[[], datetime]) -> None:
        if len(options.user_data.encode()) > MAX_USER_DATA:
            raise InvalidRequest(
                f"user data has {len(options.user_data.encode())} bytes, DigitalOcean takes {MAX_USER_DATA}"
            )
        self._api, self._options, self._now = api, options, now
        self._named = re.compile(rf"{re.escape(options.fleet)}-[0-9a-f]{{12}}")

    async def list_hosts(self) -> Listing:
        """The fleet's droplets, with and without GPUs."""
        calls: list[CallResult] = []
        found: dict[str, ObservedHost] = {}
        for query in ({"type": "gpus"}, {"tag_name": self._options.tag}):
            pages = await self._pages("list", self._api.list_droplets, query, _DropletPage, calls)
            if pages is None:
                return Listing(tuple(found.values()), tuple(calls), complete=False)
            for page in pages:
                for droplet in page.droplets:
                    tagged = self._options.tag in droplet.tags
                    if tagged or self._named.fullmatch(droplet.name):
                        found[str(droplet.id)] = _host(droplet, tagged=tagged)
        return Listing(tuple(found.values()), tuple(calls), complete=True)

    async def create(self, request: HostRequest) -> CallResult:
        """Create one droplet, with the intent's name as its name and as a tag."""
        options = self._options
        body: dict[str, Any] = {
            "name": request.name,
            "region": request.region,
            "size": request.kind,
            "image": options.image or base_image(request.kind),
            "tags": [options.tag, request.name],
            "monitoring": False,
        }
        if options.ssh_keys:
            body["ssh_keys"] = list(options.ssh_keys)
        if options.vpc_uuid:
            body["vpc_uuid"] = options.vpc_uuid
        if options.user_data:
            body["user_data"] = options.user_data
        try:
            reply = await self._api.create(body)
        except NoAnswer as error:
            return _no_answer("create", error)
        result = self._result("create", reply)
        if result.outcome is not Outcome.OK:
            return result
        try:
            droplet = msgspec.convert(reply.body, _Created).droplet
        except msgspec.ValidationError as error:
            return _unreadable(result, error)
        return msgspec.structs.replace(result, host=_host(droplet))

    async def destroy(self, provider_id: str) -> CallResult:
        """Destroy one droplet by its id."""
        try:
            reply = await self._api.destroy(int(provider_id))
        except NoAnswer as error:
            return _no_answer("destroy", error)
        return self._result("destroy", reply)

    async def endings(self, since: datetime) -> Endings:
        """Destroys in the account's list of actions, which begins with the newest."""
        calls: list[CallResult] = []

        def old(page: _ActionPage) -> bool:
            return any(action.started_at < since for action in page.actions)

        pages = await self._pages("endings", self._api.list_actions, {}, _ActionPage, calls, last=old)
        ended = {
            str(action.resource_id): action.completed_at
            for page in pages or []
            for action in page.actions
            if (action.type, action.resource_type, action.status) == ("destroy", "droplet", "completed")
            and action.completed_at is not None
        }
        return Endings(ended, tuple(calls), complete=pages is not None)

    async def close(self) -> None:
        """Close connections."""
        await self._api.close()

    async def _pages(
        self,
        call: str,
        send: Callable[[Mapping[str, str | int]], Any],
        query: Mapping[str, str | int],
        shape: type[T],
        calls: list[CallResult],
        *,
        last: Callable[[T], bool] = lambda page: False,
    ) -> Sequence[T] | None:
        """All pages, or those up to the first for which `last` holds; None when one could not be had."""
        pages: list[T] = []
        for number in range(1, MAX_PAGES + 1):
            try:
                reply = await send({**query, "page": number, "per_page": PER_PAGE})
            except NoAnswer as error:
                calls.append(_no_answer(call, error))
                return None
            result = self._result(call, reply)
            if result.outcome is Outcome.OK:
                try:
                    page = msgspec.convert(reply.body, shape)
                except msgspec.ValidationError as error:
                    result = _unreadable(result, error)
            calls.append(result)
            if result.outcome is not Outcome.OK:
                return None
            pages.append(page)
            if last(page) or not page.links.pages.next:  # type: ignore[attr-defined]  # both shapes have it
                return pages
            if result.not_before is not None and result.not_before > self._now():
                return None
        calls.append(CallResult(call, Outcome.REFUSED, detail=f"more than {MAX_PAGES} pages"))
        return None

    def _result(self, call: str, reply: ApiReply) -> CallResult:
        outcome, detail = _outcome(reply), ""
        if outcome is not Outcome.OK:
            detail = _message(reply)
        return CallResult(call, outcome, reply.status, detail, not_before=pace(reply, self._now(), outcome))


def pace(reply: ApiReply, now: datetime, outcome: Outcome) -> datetime | None:
    """The instant before which no call should follow, by the response's headers; None = at once.

    retry-after comes with a burst only. The hourly quota rolls: ratelimit-reset is when its oldest request expires.
    """
    reset = _number(reply, "ratelimit-reset")
    reset_at = None if reset is None else datetime.fromtimestamp(reset, UTC)
    if outcome is Outcome.THROTTLED:
        if (wait := _number(reply, "retry-after")) is not None:
            return now + timedelta(seconds=wait)
        return max(reset_at, now) if reset_at is not None else now + WITHOUT_HEADERS
    left = _number(reply, "ratelimit-remaining")
    if left is None or left > LOW_REMAINING or reset_at is None or reset_at <= now:
        return None
    return reset_at if left == 0 else min(reset_at, now + SPREAD)


def _outcome(reply: ApiReply) -> Outcome:
    match reply.status:
        case 200 | 202 | 204:
            return Outcome.OK
        case 404:
            return Outcome.ABSENT
        case 429:
            return Outcome.THROTTLED
        case 422 if "pending event" in _message(reply):
            return Outcome.BUSY
        case status if 400 <= status < 500 and status != 408:
            return Outcome.REFUSED
    return Outcome.UNKNOWN


def _message(reply: ApiReply) -> str:
    try:
        error = msgspec.convert(reply.body, _Error)
    except msgspec.ValidationError:
        return f"status {reply.status}"
    return (error.message or error.id)[:MAX_DETAIL]


def _number(reply: ApiReply, header: str) -> int | None:
    text = reply.headers.get(header, "")
    return int(text) if text.isdecimal() else None


def _no_answer(call: str, error: NoAnswer) -> CallResult:
    return CallResult(call, Outcome.UNKNOWN, detail=str(error)[:MAX_DETAIL])


def _unreadable(result: CallResult, error: msgspec.ValidationError) -> CallResult:
    detail = f"the response cannot be read: {error}"[:MAX_DETAIL]
    return msgspec.structs.replace(result, outcome=Outcome.UNKNOWN, detail=detail)


def _host(droplet: _Droplet, *, tagged: bool = True) -> ObservedHost:
    return ObservedHost(
        provider_id=str(droplet.id),
        name=droplet.name,
        kind=droplet.size_slug,
        region=droplet.region.slug,
        status=_STATUS.get(droplet.status, "stopped"),
        created_at=droplet.created_at,
        usd_pico_per_hour=price_pico(droplet.size.price_hourly),
        tagged=tagged,
    )
