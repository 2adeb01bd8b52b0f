"""Fakes of everything the gateway talks to. They keep books, so that a test can ask what was left unresolved."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from prometheus_client import CollectorRegistry

from billing.metering.records import (
    Checkpoint,
    HoldGranted,
    HoldRequest,
    OpenRecord,
    PriceVersion,
    UsageRecord,
)
from core.errors import ModelNotFound
from core.ids import uuid7
from gateway.admission import Admission
from gateway.director import Director
from gateway.estimate import Estimator
from gateway.open_requests import MAX_ANSWERS_BYTES, OpenRequests
from gateway.ports import Headers
from gateway.prefix import TextBlockHasher
from gateway.relay import Relay
from gateway.sandbox import Sandbox
from gateway.schemas.common import PreparedRequest
from gateway.settle import Settlement
from gateway.telemetry import Telemetry
from gateway.time_budget import EngineActivity
from gateway.whole import WholeAnswers
from scheduler.availability import Availability
from scheduler.wire import Placement, PlaceRequest, PoolSnapshot, Released
from tenants.principal import NO_LIMITS, Principal

PRICE = PriceVersion(7, 100, 10, 400, 400)


def principal(**changes: object) -> Principal:
    """A key of some tenant without limits."""
    fields: dict[str, object] = {
        "key_id": uuid7(), "project_id": uuid7(), "tenant_id": uuid7(), "tenant": "Acme", "last4": "abcd",
        "kind": "live", "tier": "standard", "key_limits": NO_LIMITS, "project_limits": NO_LIMITS,
        "tenant_limits": NO_LIMITS, "allowed_models": None, "cache_salt": "c2FsdA==",
    }  # fmt: skip
    return Principal(**{**fields, **changes})


async def pause(times: int) -> None:
    """Let the loop turn so often: the places at which a cancellation may strike."""
    for _ in range(times):
        await asyncio.sleep(0)


@dataclass
class FakeModel:
    """A model of a fake catalogue."""

    name: str = "tiny"
    context_len: int = 8192
    max_output_tokens: int = 4096
    capabilities: tuple[str, ...] = ("chat", "completions", "tools", "json", "logprobs")
    embedding_dimensions: int = 0
    template_switches: dict[str, tuple[bool | int | str, ...]] = field(default_factory=dict)
    tool_parser: str = "hermes"
    wake_deadline_s: float | None = None
    adapter: str = ""


class FakeModels:
    """Knows one model."""

    def __init__(self, model: FakeModel) -> None:
        self.model = model

    def check_serving(self) -> None:
        return

    def resolve_for(self, name: str, tenant_id: UUID, allowed: Collection[str] | None = None) -> FakeModel:
        if name != self.model.name:
            raise ModelNotFound(f"no model {name}", param="model")
        return self.model

    def largest_context(self, names: Collection[str] | None) -> int:
        return self.model.context_len


@dataclass
class FakeGrant:
    """A rate reservation."""

    request_id: str
    headers: Headers = field(default_factory=lambda: [(b"x-ratelimit-remaining-requests", b"9")])


class FakeRates:
    """Grants everything, or raises `refuse`."""

    def __init__(self) -> None:
        self.refuse: Exception | None = None
        self.pauses = 0
        self.granted: Counter[str] = Counter()
        self.resolved: Counter[str] = Counter()
        self.estimates: list[tuple[int, int]] = []
        self.settled: list[tuple[int, int]] = []
        self.refunded = 0
        self.invalid = 0

    def check(self, principal: Principal) -> None:
        if self.refuse is not None:
            raise self.refuse

    def charge_invalid(self, principal: Principal) -> None:
        self.invalid += 1

    async def acquire(
        self, request_id: str, principal: Principal, input_estimate: int, output_estimate: int
    ) -> FakeGrant:
        await pause(self.pauses)
        if self.refuse is not None:
            raise self.refuse
        self.granted[request_id] += 1
        self.estimates.append((input_estimate, output_estimate))
        return FakeGrant(request_id)

    def settle(self, grant: FakeGrant, input_tokens: int, output_tokens: int) -> None:
        self.resolved[grant.request_id] += 1
        self.settled.append((input_tokens, output_tokens))

    def refund(self, grant: FakeGrant) -> None:
        self.resolved[grant.request_id] += 1
        self.refunded += 1


class FakeHolds:
    """Grants everything, or raises `refuse`; `extensions` are answers to extend, in order."""

    def __init__(self, covered: int = 4096) -> None:
        self.covered = covered
        self.whole = True
        """Whether a hold for an answer in one piece is granted."""
        self.refuse: Exception | None = None
        self.pauses = 0
        self.requests: list[HoldRequest] = []
        self.granted: Counter[UUID] = Counter()
        self.voided: Counter[UUID] = Counter()
        self.extensions: list[bool] = []
        self.extended: list[int] = []

    async def place(self, request: HoldRequest) -> HoldGranted:
        self.requests.append(request)
        await pause(self.pauses)
        if self.refuse is not None:
            raise self.refuse
        self.granted[request.request_id] += 1
        whole = request.whole and self.whole
        longest = request.default_output_tokens
        covered = request.max_output_tokens or (longest if whole else min(self.covered, longest))
        return HoldGranted(request.request_id, datetime.now(UTC), PRICE, PRICE, 1, covered, whole)

    async def extend(self, request_id: UUID, output_tokens: int) -> bool:
        self.extended.append(output_tokens)
        await asyncio.sleep(0)
        return self.extensions.pop(0) if self.extensions else False

    def void(self, request_id: UUID) -> None:
        self.voided[request_id] += 1


class FakePrices:
    """Every model has a price in `offered`."""

    def __init__(self) -> None:
        self.offered = ["standard", "batch"]

    def tiers(self, tenant_id: UUID, model: str, adapter: str = "") -> list[str]:
        return self.offered


class FakeMeter:
    """Keeps every record."""

    def __init__(self) -> None:
        self.ready = True
        self.opened: list[OpenRecord] = []
        self.checkpoints: list[Checkpoint] = []
        self.settled: list[UsageRecord] = []

    def open(self, record: OpenRecord) -> None:
        self.opened.append(record)

    def checkpoint(self, record: Checkpoint) -> None:
        self.checkpoints.append(record)

    def settle(self, record: UsageRecord) -> None:
        self.settled.append(record)


class FakeScheduler:
    """Places on replicas r1, r2 ... in order, skipping excluded ones, or raises `refuse`."""

    def __init__(self) -> None:
        self.refuse: Exception | None = None
        self.refuse_again: Exception | None = None
        self.hit_tokens = 0
        self.predicted_itl_s = 0.0
        self.predicted_ttft_s = 0.0
        self.stream_interval = self.counts_ids = False
        self.priority: int | None = None
        self.rank: int | None = None
        self.region = self.gpu = ""
        self.pauses = 0
        self.block: asyncio.Event | None = None
        self.requests: list[PlaceRequest] = []
        self.placed: Counter[tuple[str, str]] = Counter()
        self.released: list[Released] = []
        self.prefilled = 0
        self.progressed: list[int] = []

    async def place(self, request: PlaceRequest) -> Placement:
        self.requests.append(request)
        await pause(self.pauses)
        if self.block is not None:
            await self.block.wait()
        if self.refuse is not None:
            raise self.refuse
        if request.exclude and self.refuse_again is not None:
            raise self.refuse_again
        replica = f"r{len(request.exclude) + 1}"
        self.placed[request.request_id, replica] += 1
        return Placement(
            request.request_id,
            "e1",
            replica,
            f"http://{replica}",
            request.model,
            "boot",
            hit_tokens=self.hit_tokens,
            predicted_itl_s=self.predicted_itl_s,
            predicted_ttft_s=self.predicted_ttft_s,
            stream_interval=self.stream_interval,
            priority=self.priority,
            rank=self.rank,
            region=self.region,
            gpu=self.gpu,
            counts_ids=self.counts_ids,
        )

    def prefill_done(self, placement: Placement) -> None:
        self.prefilled += 1

    def progress(self, placement: Placement, output_tokens: int) -> None:
        self.progressed.append(output_tokens)

    def release(self, released: Released) -> None:
        self.released.append(released)

    def unresolved(self) -> Counter[tuple[str, str]]:
        """Placements less releases: must be empty, and nothing released that was not placed."""
        done = Counter((one.request_id, one.replica_id) for one in self.released)
        left = Counter(self.placed)
        left.subtract(done)
        return Counter({key: count for key, count in left.items() if count})


Script = list[bytes | Exception | asyncio.Event]


class FakeStream:
    """An engine's answer from a script: bytes are read, exceptions raised, events waited for."""

    def __init__(self, script: Script) -> None:
        self.script = list(script)
        self.closed = 0
        self.aborted = 0

    async def read_into(self, sink: Callable[[bytes], bool]) -> bool:
        while data := await self._read():
            if not sink(data):
                return True
        return False

    async def _read(self) -> bytes:
        await asyncio.sleep(0)
        while self.script:
            step = self.script.pop(0)
            if isinstance(step, asyncio.Event):
                await step.wait()
                continue
            if isinstance(step, Exception):
                raise step
            return step
        return b""

    def close(self) -> None:
        self.closed += 1

    def abort(self) -> None:
        self.aborted += 1


class FakeEngines:
    """One script per attempt; an exception in its place fails the attempt at once."""

    def __init__(self, *scripts: Script | Exception) -> None:
        self.scripts = list(scripts)
        self.bodies: list[bytes] = []
        self.urls: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.streams: list[FakeStream] = []

    async def open(
        self,
        base_url: str,
        path: str,
        body: bytes,
        headers: Iterable[tuple[str, str]],
        *,
        headers_timeout_s: float = 30.0,
        key: str = "",
        authority: bytes = b"",
    ) -> FakeStream:
        self.urls.append(base_url + path)
        self.bodies.append(body)
        self.headers.append(dict(headers))
        await asyncio.sleep(0)
        script = self.scripts.pop(0)
        if isinstance(script, Exception):
            raise script
        stream = FakeStream(script)
        self.streams.append(stream)
        return stream


class FakeReply:
    """Collects what the client would get; `stuck` makes writes wait, while `unsent` bytes are left."""

    def __init__(self) -> None:
        self.started = False
        self.finished = False
        self.headers: Headers = []
        self.body = b""
        self.writes = 0
        self.unsent = 0
        self.stuck: asyncio.Event | None = None
        self.record: UsageRecord | None = None

    def settled(self, record: UsageRecord) -> None:
        self.record = record

    async def start(self, headers: Headers, prompt_tokens: int = 0) -> None:
        self.started = True
        self.headers = headers
        await asyncio.sleep(0)

    async def write(self, events: bytes) -> None:
        self.writes += 1
        self.body += events
        await asyncio.sleep(0)
        if self.stuck is not None:
            await self.stuck.wait()

    def write_now(self, events: bytes) -> bool:
        if self.stuck is not None:
            return False
        self.writes += 1
        self.body += events
        return True

    async def end(self, events: bytes) -> None:
        self.finished = True
        self.body += events
        await asyncio.sleep(0)

    async def respond(self, body: bytes, headers: Headers) -> None:
        self.started = self.finished = True
        self.headers = headers
        self.body = body
        await asyncio.sleep(0)
        if self.stuck is not None:
            await self.stuck.wait()

    def documents(self) -> list[dict[str, object]]:
        """The JSON of every event but [DONE] and comments."""
        events = [event[6:] for event in self.body.split(b"\n\n") if event.startswith(b"data: ")]
        return [msgspec.json.decode(event) for event in events if event != b"[DONE]"]


class FakePromptCounter:
    """Says that every prompt has `tokens` tokens."""

    def __init__(self) -> None:
        self.tokens = 0

    async def count_tokens(
        self, model: str, prepared: PreparedRequest, salt: str, *, reasoning: bool, simulated: bool
    ) -> int:
        await asyncio.sleep(0)
        return self.tokens


class Gateway:
    """A whole gateway of fakes around the real director and relay."""

    def __init__(
        self, engines: FakeEngines, *, model: FakeModel | None = None, covered: int = 4096,
        now: Callable[[], float] | None = None, telemetry: Telemetry | None = None, meter: FakeMeter | None = None,
        max_answer_bytes: int = MAX_ANSWERS_BYTES,
    ) -> None:  # fmt: skip
        loop_time = now or asyncio.get_running_loop().time
        self.engines = engines
        self.rates = FakeRates()
        self.holds = FakeHolds(covered)
        self.meter = meter or FakeMeter()
        self.scheduler = FakeScheduler()
        self.snapshot = PoolSnapshot()
        self.prices = FakePrices()
        self.availability = Availability(lambda: self.snapshot, lambda model: 30.0)
        self.prompts = FakePromptCounter()
        self.whole = WholeAnswers(self.scheduler, lambda: self.snapshot, self.prompts)
        activity = EngineActivity(lambda: self.snapshot)
        self.open_requests = OpenRequests(
            self.meter,
            self.scheduler,
            self.whole,
            loop_time,
            activity=activity,
            max_answer_bytes=max_answer_bytes,
        )
        telemetry, estimator = telemetry or Telemetry(CollectorRegistry()), Estimator()
        self.admission: Admission[FakeGrant] = Admission(
            models=FakeModels(model or FakeModel()),
            prices=self.prices,
            rates=self.rates,
            holds=self.holds,
            scheduler=self.scheduler,
            availability=self.availability,
            prompts=TextBlockHasher(),
            meter=self.meter,
            estimator=estimator,
            now=loop_time,
            region="here",
            queue_deadline_s=30.0,
            wake_deadline_s=lambda tier: 120.0,
        )
        settlement: Settlement[FakeGrant] = Settlement(
            rates=self.rates,
            holds=self.holds,
            scheduler=self.scheduler,
            meter=self.meter,
            estimator=estimator,
            telemetry=telemetry,
            now=loop_time,
        )
        relay = Relay(engines, self.scheduler, self.holds, self.whole, loop_time)
        sandbox: Sandbox[FakeGrant] = Sandbox(FakeModels(model or FakeModel()), self.rates, 0.0, 0.0)
        self.director = Director(
            self.admission, relay, sandbox, settlement, self.open_requests, telemetry, loop_time
        )

    def assert_resolved(self) -> None:
        """Everything granted was given back exactly once, and each hold was voided or settled, never both."""
        assert self.rates.granted == self.rates.resolved
        assert not self.scheduler.unresolved()
        settled = Counter(record.open.request_id for record in self.meter.settled)
        assert self.holds.granted == self.holds.voided + settled
        assert not self.holds.voided.keys() & settled.keys()
        assert {record.request_id for record in self.meter.opened} == set(settled)
        assert len(self.open_requests) == 0


def chunk(
    text: str = "", *, tokens: int | None = None, finish: str | None = None, prompt: int = 5, index: int = 0,
    dialect: str = "chat", role: bool = False,
) -> bytes:  # fmt: skip
    """One event as vLLM writes it; `tokens` are its running usage."""
    choice: dict[str, object] = {"index": index}
    if dialect == "chat":
        choice["delta"] = {"role": "assistant", "content": text} if role else {"content": text}
    else:
        choice["text"] = text
    choice |= {"logprobs": None, "finish_reason": finish}
    document: dict[str, object] = {
        "id": "chatcmpl-1", "object": "chat.completion.chunk" if dialect == "chat" else "text_completion",
        "created": 1700000000, "model": "tiny", "choices": [choice],
    }  # fmt: skip
    if tokens is not None:
        document["usage"] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + tokens,
            "completion_tokens": tokens,
        }
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def final(tokens: int, *, prompt: int = 5, cached: int = 0) -> bytes:
    """The last chunk: no choices, sums of usage."""
    usage = {
        "prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }  # fmt: skip
    document = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "choices": [],
    }
    return b"data: " + msgspec.json.encode({**document, "usage": usage}) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def answer(words: list[str], *, finish: str = "stop", dialect: str = "chat", prompt: int = 5) -> Script:
    """A whole good answer, one read per event."""
    script: Script = [chunk("", tokens=0, role=True)] if dialect == "chat" else []
    script += [
        chunk(
            word, tokens=i + 1, dialect=dialect, prompt=prompt, finish=finish if i + 1 == len(words) else None
        )
        for i, word in enumerate(words)
    ]
    return [*script, final(len(words), prompt=prompt), DONE]
