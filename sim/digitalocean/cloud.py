"""A stateful stand-in for DigitalOcean's API as far as hosts need it: droplets, actions, sizes, faults and a bill.

It has no sockets: `handle` takes a request and returns a response, on the clock that it was given, so that tests run on
virtual time. `serve.py` puts it behind HTTP. Every response follows the official description
(tests/data/digitalocean/hosts.json); what the description leaves open is stated in docs/hosts.md.
"""

import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from sim.digitalocean.droplets import (
    DEFAULT_SIZES,
    REGIONS,
    Action,
    Droplet,
    droplet_view,
    size_view,
)
from sim.digitalocean.faults import BURSTS, Call, Cut, Fault, Faults
from sim.digitalocean.ledger import BillingLedger

API = "https://api.digitalocean.com"
DROPLET_LIMIT = 25
HOURLY_LIMIT = 5_000
MAX_PAGE = 200
MAX_USER_DATA = 64 * 1024
_NAME = re.compile(r"^[a-zA-Z0-9]?[a-z0-9A-Z.\-]*[a-z0-9A-Z]$")
_ONE = re.compile(r"^/v2/droplets/(\d+)$")
_PENDING = "Droplet already has a pending event."


class Response(NamedTuple):
    """A response; the body is None where there is none."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any] | None


class Request(NamedTuple):
    """A request."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    token: str


class _Refused(Exception):
    def __init__(self, status: int, name: str, message: str) -> None:
        super().__init__(message)
        self.status, self.name = status, name


class FakeCloud:
    """An account. `now` gives whole Unix seconds."""

    def __init__(self, token: str, now: Callable[[], int]) -> None:
        self.token = token
        self.now = now
        self.faults = Faults()
        self.ledger = BillingLedger()
        self.prices = {slug: Fraction(price) for slug, price in DEFAULT_SIZES.items()}
        """Dollars per hour by size, for droplets that are created from now on."""
        self.droplet_limit = DROPLET_LIMIT
        self.largest_page = MAX_PAGE
        """Rows of a page at most, whatever is asked for; tests make pages small."""
        self.hourly_limit = HOURLY_LIMIT
        self.create_s = 40
        """Seconds until a droplet is active. While it is new, it has a pending event."""
        self.destroy_s = 0
        """Seconds that a destroy takes; the droplet is billed until its end."""
        self.tag_gpus_s = 0
        """Seconds until a GPU droplet carries its tags."""
        self.account_uuid = "b6fr89dbf6d9156cace5f3c78dc9851d957381ef"
        """Of the user whose token is used."""
        self.team_uuid = "5df3e3004a17e242b7c20ca6c9fc25b701a47ece"
        """Of the team that the token belongs to; empty = none."""
        self.denied: set[str] = set()
        """Operations for which the token has no scope: 403."""
        self.records_destroys = True
        """Whether the list of actions shows destroys."""
        self.droplets: dict[int, Droplet] = {}
        """Every droplet that was ever created."""
        self.actions: list[Action] = []
        self.calls: list[Call] = []
        self.too_early = 0
        """Calls that were made before a 429's wait was over."""
        self.seen: Callable[[Request, Response], None] = _ignore
        """Called with each request and response; tests hold them to the description here."""
        self.barred_until = 0
        """End of the wait that the last 429 asked for."""
        self._recent: deque[int] = deque()
        self._ids = itertools.count(3_164_444)
        self._action_ids = itertools.count(36_804_636)

    def alive(self) -> list[Droplet]:
        """The droplets that exist now, shown or not."""
        now = self.now()
        return [one for one in self.droplets.values() if one.gone_at is None or one.gone_at > now]

    def create(self, name: str, size: str, region: str, tags: list[str], *, hidden_s: int = 0) -> Droplet:
        """Create a droplet at once, as the API does for a create, and as another user of the account may by hand."""
        now = self.now()
        droplet = Droplet(
            next(self._ids),
            name,
            size,
            region,
            "gpu-h100x1-base",
            tags,
            self.prices[size],
            now,
            now + self.create_s,
            now + hidden_s,
        )
        droplet.tagged_at = now + (self.tag_gpus_s if droplet.is_gpu else 0)
        self.droplets[droplet.droplet_id] = droplet
        self.ledger.open(droplet.droplet_id, name, droplet.usd_per_hour, now)
        self._act("create", droplet, now, droplet.active_at)
        return droplet

    def hide(self, droplet_id: int, seconds: int) -> None:
        """Let a droplet be 404 and in no list for a while."""
        self.droplets[droplet_id].shown_at = self.now() + seconds

    def reclaim(self, droplet_id: int, at: int) -> None:
        """Take a spot droplet away at `at`. Its owner is told by e-mail only: nothing here says so."""
        droplet = self.droplets[droplet_id]
        if droplet.gone_at is None:
            self._end(droplet, at, at)

    def handle(self, request: Request) -> Response:
        """Answer one request. Raises Cut when its connection breaks before the answer."""
        now = self.now()
        operation = _operation(request)
        try:
            response = self._answer(request, operation, now)
        except Cut:
            self.calls.append(Call(now, operation, 0))
            raise
        response.headers.update(self._rate_headers(now))
        self.calls.append(Call(now, operation, response.status))
        self.seen(request, response)
        return response

    def _answer(self, request: Request, operation: str, now: int) -> Response:
        if now < self.barred_until:
            self.too_early += 1
            return self._throttled(with_header=True, now=now)
        if request.token != self.token:
            return _error(401, "unauthorized", "Unable to authenticate you")
        while self._recent and self._recent[0] <= now - 3600:
            self._recent.popleft()
        if len(self._recent) >= self.hourly_limit:
            return self._throttled(with_header=False, now=now)
        self._recent.append(now)
        fault = self.faults.take(operation)
        if fault in BURSTS or fault is Fault.SPENT:
            self.barred_until = now + self.faults.retry_after_s
            return self._throttled(with_header=fault in BURSTS, now=now)
        if fault in (Fault.LIST_ERROR, Fault.ACTIONS_ERROR):
            return _error(500, "server_error", "Server was unable to give you a response.")
        try:
            if operation in self.denied:
                raise _Refused(403, "forbidden", "You are not authorized to perform this operation")
            return self._operate(request, operation, fault, now)
        except _Refused as refused:
            return _error(refused.status, refused.name, str(refused))

    def _operate(self, request: Request, operation: str, fault: Fault | None, now: int) -> Response:
        match operation:
            case "create":
                return self._create(request.body, fault, now)
            case "list":
                rows = [droplet_view(one, now) for one in self._listed(request.query, now)]
                return self._page(request, "droplets", rows)
            case "get":
                return Response(200, {}, {"droplet": droplet_view(self._find(request.path, now), now)})
            case "destroy":
                return self._destroy(request.path, fault, now)
            case "actions":
                begun = [action for action in self.actions if action.started_at <= now]
                begun.sort(key=lambda action: (action.started_at, action.action_id), reverse=True)
                return self._page(request, "actions", [action.view(now) for action in begun])
            case "sizes":
                return self._page(request, "sizes", [size_view(*item) for item in self.prices.items()])
            case "account":
                return Response(200, {}, {"account": self._account()})
        raise _Refused(404, "not_found", "The resource you were accessing could not be found.")

    def _account(self) -> dict[str, Any]:
        view: dict[str, Any] = {
            "droplet_limit": self.droplet_limit,
            "floating_ip_limit": 5,
            "email": "sammy@digitalocean.com",
            "uuid": self.account_uuid,
            "email_verified": True,
            "status": "active",
            "status_message": " ",
        }
        return {**view, "team": {"uuid": self.team_uuid, "name": "My Team"}} if self.team_uuid else view

    def _page(self, request: Request, name: str, rows: list[dict[str, Any]]) -> Response:
        try:
            page, size = int(request.query.get("page", "1")), int(request.query.get("per_page", "20"))
        except ValueError:
            raise _Refused(422, "unprocessable_entity", "page and per_page are numbers") from None
        if page < 1 or not 1 <= size <= MAX_PAGE:
            raise _Refused(422, "unprocessable_entity", "per_page is 1 to 200")
        size = min(size, self.largest_page)
        more = page * size < len(rows)
        links: dict[str, Any] = {}
        if more:
            following = "&".join(
                f"{key}={value}" for key, value in {**request.query, "page": str(page + 1)}.items()
            )
            links = {"pages": {"next": f"{API}{request.path}?{following}", "last": f"{API}{request.path}"}}
        shown = rows[(page - 1) * size : page * size]
        return Response(200, {}, {name: shown, "links": links, "meta": {"total": len(rows)}})

    def _listed(self, query: Mapping[str, str], now: int) -> list[Droplet]:
        """The droplets that a list shows. Without a type or tag it shows those without GPUs only."""
        tag, name, kind = query.get("tag_name"), query.get("name"), query.get("type")
        if tag is not None and (name is not None or kind is not None):
            raise _Refused(422, "unprocessable_entity", "tag_name can not be combined with name or type")
        shown = [one for one in self.alive() if one.shown_at <= now]
        if tag is not None:
            return [one for one in shown if tag in one.tags_at(now)]
        gpus = kind == "gpus"
        return [
            one for one in shown if one.is_gpu == gpus and (name is None or one.name.lower() == name.lower())
        ]

    def _find(self, path: str, now: int) -> Droplet:
        matched = _ONE.match(path)
        found = self.droplets.get(int(matched[1])) if matched else None
        if found is None or found.shown_at > now or (found.gone_at is not None and found.gone_at <= now):
            raise _Refused(404, "not_found", "The resource you were accessing could not be found.")
        return found

    def _create(self, body: Any, fault: Fault | None, now: int) -> Response:
        self._check_create(body)
        if fault is Fault.CREATE_NO_SIZE:
            raise _Refused(422, "unprocessable_entity", "Size is not available in this region.")
        if fault is Fault.CREATE_LIMIT or len(self.alive()) >= self.droplet_limit:
            message = "creating this/these droplet(s) will exceed your droplet limit"
            raise _Refused(422, "unprocessable_entity", message)
        if fault is Fault.CREATE_ERROR_BEFORE:
            return _error(500, "server_error", "Server was unable to give you a response.")
        if fault is Fault.CREATE_NOTHING:
            return self._accept_nothing(body, now)
        hidden_s = 0
        if fault is not None:
            faults = self.faults
            hidden_s = faults.hidden_s if fault is Fault.CREATE_HIDDEN else faults.hidden_after_error_s
        droplet = self.create(
            body["name"], body["size"], body["region"], list(body.get("tags") or []), hidden_s=hidden_s
        )
        droplet.image, droplet.user_data = str(body["image"]), body.get("user_data", "")
        if fault is Fault.CREATE_CUT_AFTER:
            raise Cut
        if fault is Fault.CREATE_ERROR_AFTER:
            return _error(500, "server_error", "Server was unable to give you a response.")
        return _accepted(droplet, self.actions[-1], now)

    def _accept_nothing(self, body: Any, now: int) -> Response:
        ghost = Droplet(
            next(self._ids),
            body["name"],
            body["size"],
            body["region"],
            str(body["image"]),
            list(body.get("tags") or []),
            self.prices[body["size"]],
            now,
            now + self.create_s,
            now,
        )
        self._act("create", ghost, now, now + self.create_s, fails=True)
        return _accepted(ghost, self.actions[-1], now)

    def _check_create(self, body: Any) -> None:
        if not isinstance(body, dict) or not {"name", "size", "image", "region"} <= body.keys():
            raise _Refused(422, "unprocessable_entity", "name, size, image and region are needed")
        problem = None
        if not _NAME.match(str(body["name"])) or len(body["name"]) > 255:
            problem = "Only valid hostname characters are allowed. (a-z, A-Z, 0-9, . and -)"
        elif body["size"] not in self.prices:
            problem = "You specified an invalid size for Droplet creation."
        elif body["region"] not in REGIONS:
            problem = "You specified an invalid region for Droplet creation."
        elif len(body.get("user_data", "").encode()) > MAX_USER_DATA:
            problem = "User data cannot be longer than 64KiB"
        if problem is not None:
            raise _Refused(422, "unprocessable_entity", problem)

    def _destroy(self, path: str, fault: Fault | None, now: int) -> Response:
        if fault is Fault.DESTROY_NOT_FOUND:
            raise _Refused(404, "not_found", "The resource you were accessing could not be found.")
        droplet = self._find(path, now)
        if fault is Fault.DESTROY_PENDING or droplet.status(now) == "new" or droplet.destroying:
            raise _Refused(422, "unprocessable_entity", _PENDING)
        self._end(droplet, now, now + self.destroy_s)
        if fault is Fault.DESTROY_CUT_AFTER:
            raise Cut
        if fault is Fault.DESTROY_ERROR_AFTER:
            return _error(500, "server_error", "Server was unable to give you a response.")
        return Response(204, {"content-type": "application/json; charset=utf-8"}, None)

    def _end(self, droplet: Droplet, started_at: int, ended_at: int) -> None:
        """End a droplet. A reclaim that was announced is overtaken by a destroy before it."""
        self.actions = [
            one for one in self.actions if (one.kind, one.droplet_id) != ("destroy", droplet.droplet_id)
        ]
        droplet.gone_at, droplet.destroying = ended_at, started_at <= self.now()
        self.ledger.close(droplet.droplet_id, ended_at)
        if self.records_destroys:
            self._act("destroy", droplet, started_at, ended_at)

    def _act(self, kind: str, droplet: Droplet, start: int, end: int, *, fails: bool = False) -> None:
        self.actions.append(
            Action(next(self._action_ids), kind, droplet.droplet_id, droplet.region, start, end, fails)
        )

    def _throttled(self, *, with_header: bool, now: int) -> Response:
        response = _error(429, "too_many_requests", "API Rate limit exceeded.")
        if with_header:
            response.headers["retry-after"] = str(max(self.barred_until - now, 1))
        return response

    def _rate_headers(self, now: int) -> dict[str, str]:
        oldest = self._recent[0] if self._recent else now
        barred = self.barred_until > now
        return {
            "ratelimit-limit": str(self.hourly_limit),
            "ratelimit-remaining": "0" if barred else str(max(self.hourly_limit - len(self._recent), 0)),
            "ratelimit-reset": str(self.barred_until if barred else oldest + 3600),
        }


def _ignore(request: Request, response: Response) -> None:
    """Do nothing: no observer is set."""


def _operation(request: Request) -> str:
    match request.method, request.path:
        case "POST", "/v2/droplets":
            return "create"
        case "GET", "/v2/droplets":
            return "list"
        case "GET", "/v2/actions":
            return "actions"
        case "GET", "/v2/sizes":
            return "sizes"
        case "GET", "/v2/account":
            return "account"
    if _ONE.match(request.path):
        return {"GET": "get", "DELETE": "destroy"}.get(request.method, "unknown")
    return "unknown"


def _error(status: int, name: str, message: str) -> Response:
    return Response(status, {}, {"id": name, "message": message, "request_id": "4d9d8375-3c56-4925-a3e7"})


def _accepted(droplet: Droplet, action: Action, now: int) -> Response:
    link = {"id": action.action_id, "rel": "create", "href": f"{API}/v2/actions/{action.action_id}"}
    return Response(202, {}, {"droplet": droplet_view(droplet, now), "links": {"actions": [link]}})


def decode_body(text: bytes) -> Any:
    """The JSON of a request; None for none or for what is no JSON, which a create refuses."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None
