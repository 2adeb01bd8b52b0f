"""Hosts as droplets of DigitalOcean.

`GET /v2/droplets` lists droplets without GPUs; `type=gpus` lists those with GPUs, and neither can be combined with a
tag. So lists of all droplets of both types, filtered here, and a list by tag make the fleet. Tags are put on a droplet
after it is created, and anyone may take them off: then it is known by its name. A droplet is destroyed, never powered
off: powered off it costs as much. Nothing is destroyed by tag, which would hit hosts without an intent.
"""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, TypeVar

import msgspec

from core.errors import InvalidRequest
from core.money import usd_to_pico
from workers.host_models import is_shared
from workers.providers.droplet_api import (
    AccountReply,
    ActionPage,
    ApiReply,
    Created,
    Droplet,
    DropletApi,
    DropletPage,
    Error,
    Image,
    NoAnswer,
    SizePage,
)
from workers.providers.first_boot import FirstBoot, user_data
from workers.providers.intents import name_pattern
from workers.providers.interface import (
    MAX_GROUP,
    Account,
    CallResult,
    Endings,
    EngineStart,
    HostRequest,
    HostStatus,
    Listing,
    ObservedHost,
    Outcome,
    Prices,
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
_GPU = "gpu-"
"""What the slugs of sizes with GPUs begin with."""
_PRICE_STEP = Decimal("0.00001")
_STATUS: Mapping[str, HostStatus] = {"new": "starting", "active": "running"}

T = TypeVar("T")


MODEL_MARK, PROFILE_MARK, REPLICAS_MARK = "{{model}}", "{{profile}}", "{{replicas}}"
"""Stand in user data for what the droplet is to serve, each as a word of a shell."""


class DropletOptions(msgspec.Struct, frozen=True):
    """What every droplet of the fleet is created with."""

    fleet: str
    """Name of this installation: first part of its droplets' names, and in the tag by which it knows them."""
    image: str = ""
    """Id or slug of the image; empty = DigitalOcean's base image for the kind of GPU."""
    ssh_keys: tuple[str, ...] = ()
    vpc_uuid: str = ""
    user_data: str = ""
    """The operator's script or cloud-config for the first start, with what it is to serve for the marks."""
    schedulers: str = ""
    """Addresses of the schedulers as droplets reach them; empty = droplets are not told to join."""
    kinds: frozenset[str] = frozenset()
    """Kinds of hosts that the catalog has."""

    @property
    def tag(self) -> str:
        """The tag of every droplet of the fleet."""
        return f"penstock-{self.fleet}"


def base_image(kind: str) -> str:
    """DigitalOcean's base image for a size: drivers and container toolkit for AMD, for 8 linked or for single GPUs."""
    if "-mi3" in kind:
        return "gpu-amd-base"
    if kind.startswith(_GPU):
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
        self._api, self._options, self._now = api, options, now
        # The largest that there can be: a token of full length, and names as long as names may be.
        longest = HostRequest(
            "n" * 64, "r" * 100, "k" * 100, "m" * MAX_GROUP, EngineStart("p" * 100, 10**4), "t" * 120
        )
        if (size := len(self._user_data(longest).encode())) > MAX_USER_DATA:
            raise InvalidRequest(
                f"user data may have {size} bytes with what Penstock adds, DigitalOcean takes {MAX_USER_DATA}"
            )
        self._named = name_pattern(options.fleet)

    async def account(self) -> Account:
        """The team that the token belongs to, else its user."""
        try:
            reply = await self._api.account()
        except NoAnswer as error:
            return Account("", _no_answer("account", error))
        result = self._result("account", reply)
        if result.outcome is not Outcome.OK:
            return Account("", result)
        try:
            user = msgspec.convert(reply.body, AccountReply).account
        except msgspec.ValidationError as error:
            return Account("", _unreadable(result, error))
        return Account(user.team.uuid or user.uuid, result)

    async def prices(self, kinds: Collection[str]) -> Prices:
        """The prices of sizes. Sizes of a contract are not listed."""
        calls: list[CallResult] = []
        pages = await self._pages("prices", self._api.list_sizes, {}, SizePage, calls)
        sizes = [size for page in pages or [] for size in page.sizes if size.slug in kinds]
        prices = {size.slug: price_pico(size.price_hourly) for size in sizes}
        return Prices(prices, tuple(calls), complete=pages is not None)

    async def list_hosts(self, kinds: Collection[str]) -> Listing:
        """The fleet's droplets. Those without GPUs and without the tag are looked for where a kind has no GPUs."""
        calls: list[CallResult] = []
        found: dict[str, ObservedHost] = {}
        queries = [{"type": "gpus"}, {"tag_name": self._options.tag}]
        if any(not kind.startswith(_GPU) for kind in kinds):
            queries.append({"type": "droplets"})
        for query in queries:
            pages = await self._pages("list", self._api.list_droplets, query, DropletPage, calls)
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
        if untold := self._untold(request):
            return CallResult("create", Outcome.REFUSED, detail=untold)
        body: dict[str, Any] = {
            "name": request.name,
            "region": request.region,
            "size": request.kind,
            "image": request.image or options.image or base_image(request.kind),
            "tags": [options.tag, request.name],
            "monitoring": False,
        }
        if options.ssh_keys:
            body["ssh_keys"] = list(options.ssh_keys)
        if options.vpc_uuid:
            body["vpc_uuid"] = options.vpc_uuid
        if user_data := self._user_data(request):
            body["user_data"] = user_data
        try:
            reply = await self._api.create(body)
        except NoAnswer as error:
            return _no_answer("create", error)
        result = self._result("create", reply)
        if result.outcome is not Outcome.OK:
            return result
        try:
            droplet = msgspec.convert(reply.body, Created).droplet
        except msgspec.ValidationError as error:
            return _unreadable(result, error)
        return msgspec.structs.replace(result, host=_host(droplet))

    def _user_data(self, request: HostRequest) -> str:
        """The operator's own, and where the host is to join, ours."""
        options = self._options
        own = options.user_data
        for mark, value in _marks(request).items():
            own = own.replace(mark, shlex.quote(value))
        if not options.schedulers or not request.join_token:
            return own
        kind = request.kind if request.kind in options.kinds else ""
        boot = FirstBoot(
            request.join_token,
            options.schedulers,
            request.region,
            kind,
            request.model,
            request.start.profile,
            str(request.start.replicas),
        )
        return user_data(own, boot)

    def _untold(self, request: HostRequest) -> str:
        """What the operator's own user data would not tell an agent of what the plan counts on; empty = nothing."""
        own, start = self._options.user_data, request.start
        if MODEL_MARK not in own or (self._options.schedulers and request.join_token):
            return ""  # it starts none by itself
        needed = {
            PROFILE_MARK: bool(start.profile),
            REPLICAS_MARK: start.replicas > 1 or is_shared(request.model),
        }
        values = _marks(request)
        missing = [f"{mark} ({values[mark]})" for mark, needs in needed.items() if needs and mark not in own]
        if not missing:
            return ""
        return (
            f"the user data has {MODEL_MARK} and not {' and '.join(missing)}, by which hosts of {request.model} are "
            f"planned; give the agent PENSTOCK_PROFILE={PROFILE_MARK} PENSTOCK_REPLICAS={REPLICAS_MARK}, or set "
            "PENSTOCK_HOST_SCHEDULERS"
        )

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

        def old(page: ActionPage) -> bool:
            return any(action.started_at < since for action in page.actions)

        pages = await self._pages("endings", self._api.list_actions, {}, ActionPage, calls, last=old)
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


def _marks(request: HostRequest) -> dict[str, str]:
    start = request.start
    return {MODEL_MARK: request.model, PROFILE_MARK: start.profile, REPLICAS_MARK: str(start.replicas)}


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
        error = msgspec.convert(reply.body, Error)
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


def _host(droplet: Droplet, *, tagged: bool = True) -> ObservedHost:
    image = droplet.image or Image()
    return ObservedHost(
        provider_id=str(droplet.id),
        name=droplet.name,
        kind=droplet.size_slug,
        region=droplet.region.slug,
        status=_STATUS.get(droplet.status, "stopped"),
        created_at=droplet.created_at,
        usd_pico_per_hour=price_pico(droplet.size.price_hourly),
        tagged=tagged,
        image=image.slug or str(image.id or ""),
    )
