"""The fake cloud without sockets, intents in memory, and both held to the official description, on virtual time."""

import json
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from jsonschema import Draft4Validator, FormatChecker
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT4

from sim.digitalocean.cloud import FakeCloud, Request, Response
from sim.digitalocean.faults import Cut
from workers.providers.droplet_api import ApiReply, NoAnswer
from workers.providers.images import next_image
from workers.providers.intents import Act, Intent, IntentState, Overtaken
from workers.providers.interface import (
    CallResult,
    DesiredHosts,
    EngineStart,
    HostGroup,
    ImageRollout,
    ObservedHost,
)
from workers.providers.ownership import Claim, Owner
from workers.providers.reconciler import Pace

T = TypeVar("T")
TOKEN = "dop_v1_test"
START = 1_795_000_000
SPEC = json.loads((Path(__file__).parents[1] / "data" / "digitalocean" / "hosts.json").read_text())


class Crash(Exception):
    """The process died here."""


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for anything."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits for something")


class VirtualTime:
    """Whole Unix seconds that tests move."""

    def __init__(self) -> None:
        self.at = START

    def seconds(self) -> int:
        return self.at

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)


class Crashes:
    """Kills the process at a step that a test names, before or after a write or a call, or lets another act there."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.before_other: int | None = None
        """Steps until `other` acts in between."""
        self.other: Callable[[], None] = lambda: None
        self.after_create = False
        """Whether it dies between the next create and its result."""

    def step(self) -> None:
        if self.before_other is not None:
            self.before_other -= 1
            if self.before_other < 0:
                self.before_other = None
                self.other()
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise Crash

    def created(self) -> None:
        if self.after_create:
            self.after_create = False
            raise Crash


class CloudApi:
    """DropletApi on the fake, in this process."""

    def __init__(self, cloud: FakeCloud, crashes: Crashes | None = None) -> None:
        self.cloud, self._crashes = cloud, crashes or Crashes()

    async def create(self, body: dict[str, Any]) -> ApiReply:
        return self._send("POST", "/v2/droplets", body=body)

    async def list_droplets(self, query: Mapping[str, str | int]) -> ApiReply:
        return self._send("GET", "/v2/droplets", query)

    async def destroy(self, droplet_id: int) -> ApiReply:
        return self._send("DELETE", f"/v2/droplets/{droplet_id}")

    async def list_actions(self, query: Mapping[str, str | int]) -> ApiReply:
        return self._send("GET", "/v2/actions", query)

    async def list_sizes(self, query: Mapping[str, str | int]) -> ApiReply:
        return self._send("GET", "/v2/sizes", query)

    async def account(self) -> ApiReply:
        return self._send("GET", "/v2/account")

    async def close(self) -> None:
        return None

    def _send(
        self, method: str, path: str, query: Mapping[str, str | int] | None = None, body: Any = None
    ) -> ApiReply:
        self._crashes.step()
        asked = Request(method, path, {key: str(value) for key, value in (query or {}).items()}, body, TOKEN)
        try:
            reply = self.cloud.handle(asked)
        except Cut as error:
            raise NoAnswer("connection reset by peer") from error
        self._crashes.step()
        if method == "POST":
            self._crashes.created()
        return ApiReply(reply.status, reply.headers, reply.body)


class MemoryStore:
    """IntentStore in memory. Like the real one it forgets nothing, but loads what ended long ago only when shown."""

    def __init__(self, time: VirtualTime, crashes: Crashes | None = None) -> None:
        self._time, self._crashes = time, crashes or Crashes()
        self.intents: dict[UUID, Intent] = {}
        self.wanted: list[DesiredHosts] = []
        self.events: list[tuple[str | None, CallResult]] = []
        self.dry: list[Act] = []
        self.kept = Pace()
        self.database = "1-1"
        self.owner = Claim()
        self.notices: list[str] = []
        self.refused: list[str] = []
        self.images_before: dict[HostGroup, str] = {}

    async def now(self) -> datetime:
        return self._time.now()

    async def desired(self, provider: str) -> Sequence[DesiredHosts]:
        return self.wanted

    async def kinds(self, provider: str) -> Collection[str]:
        live = {one.kind for one in self.intents.values() if one.state is not IntentState.ENDED}
        return live | {row.group.kind for row in self.wanted if row.count}

    async def load(self, provider: str, shown: Sequence[ObservedHost]) -> Sequence[Intent]:
        ids = {host.provider_id for host in shown}
        names = {host.name for host in shown}
        now = self._time.now()
        return [
            one
            for one in self.intents.values()
            if one.state is not IntentState.ENDED
            or one.provider_id in ids
            or one.name in names
            or (one.ended_at is not None and (now - one.ended_at).total_seconds() < 86_400)
        ]

    async def add(self, intent: Intent) -> None:
        self._crashes.step()
        assert intent.intent_id not in self.intents
        others = self.intents.values()
        if not any(
            one.name == intent.name or one.provider_id == intent.provider_id is not None for one in others
        ):
            self.intents[intent.intent_id] = intent
        self._crashes.step()

    async def save(self, before: Intent, after: Intent, result: CallResult | None = None) -> Intent:
        self._crashes.step()
        kept = self.intents[after.intent_id]
        if kept.version != before.version and after != before:
            raise Overtaken(after.name)
        if after != before:
            # Like the real one it writes what has changed: what agents report is in no column.
            kept = msgspec.structs.replace(
                after, version=before.version + 1, joined_at=kept.joined_at, fit_at=kept.fit_at
            )
            self.intents[after.intent_id] = kept
        if result is not None:
            self.events.append((after.name, result))
        self._crashes.step()
        return kept

    async def reload(self, intent: Intent) -> Intent:
        return self.intents[intent.intent_id]

    async def start(self, kind: str, model: str) -> EngineStart:
        return EngineStart()

    async def image(self, group: HostGroup) -> str:
        of_group = [one for one in self.intents.values() if one.group == group]
        return next((next_image(row, of_group) for row in self.wanted if row.group == group), "")

    def set_image(self, group: HostGroup, image: str, *, surge: bool = True) -> None:
        """What an admin does."""
        for number, row in enumerate(self.wanted):
            if row.group == group:
                if row.image != image:
                    self.images_before[group] = row.image
                self.wanted[number] = msgspec.structs.replace(
                    row, image=image, image_at=self._time.now(), surge=surge
                )

    def roll_image(self, group: HostGroup, rollout: ImageRollout | None) -> None:
        """What an admin and the scheduler decide of a rollout; None = it has ended."""
        for number, row in enumerate(self.wanted):
            if row.group == group:
                self.wanted[number] = msgspec.structs.replace(row, rollout=rollout)

    async def give_up_image(self, group: HostGroup, image: str) -> bool:
        self._crashes.step()
        if await self.image(group) != image:
            return False
        surge = next(row.surge for row in self.wanted if row.group == group)
        self.set_image(group, self.images_before.get(group, ""), surge=surge)
        self.images_before[group] = ""
        self._crashes.step()
        return True

    async def database_id(self) -> str:
        return self.database

    async def claim(self, provider: str) -> Claim:
        return self.owner

    async def set_claim(self, provider: str, owner: Owner) -> None:
        self._crashes.step()
        self.owner = Claim(owner.fleet, owner.account, owner.database, self.owner.confirmed_at)

    async def notice(self, provider: str, line: str) -> bool:
        self.notices.append(line)
        return len(self.notices) == 1

    async def record_refused(self, provider: str, reasons: Sequence[str]) -> None:
        self.refused += reasons

    async def record(self, provider: str, results: Sequence[CallResult]) -> None:
        self._crashes.step()
        self.events += [(None, result) for result in results]

    async def record_dry(self, provider: str, acts: Sequence[Act], intents: Sequence[Intent]) -> None:
        self.dry += acts

    async def pace(self, provider: str) -> Pace:
        return self.kept

    async def set_pace(self, provider: str, pace: Pace) -> None:
        self._crashes.step()
        self.kept = Pace(
            _later(self.kept.not_before, pace.not_before), _later(self.kept.whole_at, pace.whole_at)
        )


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((at for at in (one, other) if at is not None), default=None)


def _strict(node: Any) -> Any:
    """An OpenAPI 3.0 schema as JSON Schema: what is nullable may be null."""
    if isinstance(node, list):
        return [_strict(one) for one in node]
    if not isinstance(node, dict):
        return node
    plain = {key: _strict(value) for key, value in node.items() if key != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if node.get("nullable") is True else plain


_DOCUMENT = {**_strict(SPEC), "$schema": "http://json-schema.org/draft-04/schema#"}
_REGISTRY: Registry[Any] = Registry().with_resource(
    "urn:digitalocean", Resource.from_contents(_DOCUMENT, default_specification=DRAFT4)
)
_CHECKED: dict[str, Draft4Validator] = {}


def _validator(pointer: str) -> Draft4Validator:
    if pointer not in _CHECKED:
        _CHECKED[pointer] = Draft4Validator(
            {"$ref": f"urn:digitalocean#{pointer}"},
            registry=_REGISTRY,
            format_checker=FormatChecker(),
        )
    return _CHECKED[pointer]


def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D")


def hold_to_description(request: Request, response: Response) -> None:
    """Raise unless the response is one that the official description has for this request; a create's body, too."""
    one = request.path.startswith("/v2/droplets/")
    path = "/v2/droplets/{droplet_id}" if one else request.path
    responses = SPEC["paths"][path][request.method.lower()]["responses"]
    known = str(response.status) if str(response.status) in responses else "default"
    name = responses[known]["$ref"].rsplit("/", 1)[-1]
    described = SPEC["components"]["responses"][name]
    for header in described.get("headers", {}):
        if header.startswith("ratelimit-"):
            assert response.headers[header].isdecimal(), header
    if "content" not in described:
        assert response.body is None
        return
    _validator(f"/components/responses/{_escaped(name)}/content/application~1json/schema").validate(
        response.body
    )
    if request.method == "POST" and response.status == 202:
        _validator("/components/schemas/droplet_single_create").validate(request.body)
