"""Requests of the play: drawn from a seeded generator, held, metered and settled by the product, told to the model."""

import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from billing.metering.records import (
    Checkpoint,
    HoldGranted,
    HoldRequest,
    OpenRecord,
    Outcome,
    Unbilled,
    UsageRecord,
)
from core.tokens import NO_TOKENS, TokenUsage
from tests.support.platform_play.engines import Engine
from tests.support.platform_play.model import Account, Group
from tests.support.platform_play.prices import Book, Pinned

MAX_SECONDS = 90
KINDS = {
    "completed": 60, "length": 10, "choices": 8, "client_cancelled": 8, "engine_failed": 5, "zero_output": 4,
    "retried": 4, "budget_stopped": 1,
}  # fmt: skip


@dataclass
class Person:
    """A customer of the play: ids at the product, account in the model."""

    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    account: Account
    ttft_us: int = 200_000
    suspended: bool = False


@dataclass
class Request:
    """One request from its hold to its end."""

    person: Person
    model: str
    kind: str
    usage: TokenUsage
    asked: HoldRequest
    hold: int
    granted: HoldGranted | None = None


def month_of(instant: datetime) -> date:
    """The month of the books that an instant belongs to."""
    return instant.astimezone(UTC).date().replace(day=1)


def disjoint(usage: TokenUsage) -> list[int]:
    """The four classes of an invoice."""
    return [
        usage.input - usage.cached_input,
        usage.cached_input,
        usage.output - usage.reasoning,
        usage.reasoning,
    ]


class Traffic:
    """Draws requests, and tells engines and model what became of them."""

    def __init__(self, seed: int, book: Book, engines: dict[str, Engine]) -> None:
        self.rng = random.Random(seed)
        self.book, self.engines = book, engines
        self.count = 0

    def id_at(self, instant: datetime) -> UUID:
        """A UUIDv7 of that instant."""
        milliseconds = int(instant.timestamp() * 1000)
        noise = self.rng.getrandbits(74)
        high = (milliseconds << 80) | (7 << 76) | ((noise >> 62) << 64)
        return UUID(int=high | (2 << 62) | (noise & ((1 << 62) - 1)))

    def draw(
        self, person: Person, now: datetime, *, kind: str = "", model: str = "", size: int = 40_000
    ) -> Request | None:
        """A request of `person`, its hold counted in the model; None when there is no credit for it."""
        rng = self.rng
        model = model or rng.choice(sorted(self.engines))
        chosen = kind or rng.choices(list(KINDS), weights=list(KINDS.values()))[0]
        prompt, answer = rng.randrange(1, 3 * size), rng.randrange(1, size)
        if chosen == "zero_output":
            answer = 0
        usage = TokenUsage(
            input=prompt,
            cached_input=rng.choice([0, rng.randrange(prompt + 1)]),
            output=answer,
            reasoning=rng.choice([0, rng.randrange(answer + 1)]),
        )
        asked = HoldRequest(
            request_id=self.id_at(now),
            tenant_id=person.tenant_id,
            project_id=person.project_id,
            key_id=person.key_id,
            model=model,
            tier="standard",
            max_input_tokens=prompt + rng.randrange(100),
            max_output_tokens=answer + 1 + rng.randrange(100),
        )
        rates = self.book.pinned(person.account.name, model, now).rates
        hold = asked.max_input_tokens * max(rates[:2]) + asked.max_output_tokens * max(rates[2:])
        account = person.account
        if account.mode == "prepaid" and hold > account.balance - account.held:
            return None
        account.held += hold
        self.count += 1
        return Request(person, model, chosen, usage, asked, hold)

    def opened(self, request: Request, granted: HoldGranted) -> OpenRecord:
        """The line that is written before dispatch; the price that was pinned must be the model's."""
        request.granted = granted
        pinned = self.pinned(request)
        got = granted.price
        assert (got.input, got.cached_input, got.output, got.reasoning) == pinned.rates
        assert granted.amount == request.hold
        engine = self.engines[request.model]
        return OpenRecord(
            request_id=granted.request_id,
            tenant_id=request.person.tenant_id,
            project_id=request.person.project_id,
            key_id=request.person.key_id,
            model=request.model,
            tier="standard",
            region="test",
            price=granted.price,
            list_price=granted.list_price,
            admitted_at=granted.admitted_at,
            replica_id=engine.replica,
            boot_id=engine.boot,
            simulated=True,
            stream=True,
            max_input_tokens=request.asked.max_input_tokens,
        )

    def pinned(self, request: Request) -> Pinned:
        """The model's price of a request that is admitted."""
        assert request.granted is not None
        return self.book.pinned(request.person.account.name, request.model, request.granted.admitted_at)

    def ended(self, request: Request, opened: OpenRecord) -> UsageRecord:
        """The end of a request, counted by its engine for the reasons that its record gives."""
        engine, usage, rng = self.engines[request.model], request.usage, self.rng
        outcome, unbilled, attempts = Outcome.COMPLETED, [], 1
        if request.kind in ("choices", "retried"):
            spent = (usage.input, 0) if request.kind == "choices" else (usage.input, rng.randrange(50))
            engine.work(request.kind, *spent)
            again = {"again_us": rng.randrange(1, 1000)} if request.kind == "retried" else {}
            unbilled.append(Unbilled(request.kind, engine.replica, engine.boot, *spent, **again))
            attempts = 2 if request.kind == "retried" else 1
        else:
            outcome = Outcome(request.kind)
        if outcome is Outcome.CLIENT_CANCELLED:
            bound = rng.randrange(200)
            engine.work("cancelled_tail", 0, rng.randrange(bound + 1))
            unbilled.append(Unbilled("cancelled_tail", engine.replica, engine.boot, tail_output=bound))
        engine.work(outcome.value if outcome.free else "billed", usage.input, usage.output)
        seconds = rng.randrange(1, MAX_SECONDS)
        ttft_us = request.person.ttft_us + rng.randrange(1000)
        return UsageRecord(
            opened,
            outcome,
            usage,
            attempts=attempts,
            queue_us=rng.randrange(1000),
            ttft_us=ttft_us if usage.output else 0,
            duration_us=seconds * 1_000_000,
            unbilled=tuple(unbilled),
        )

    def bill(
        self,
        request: Request,
        usage: TokenUsage,
        ended_at: datetime,
        booked_at: datetime,
        *,
        free: bool = False,
        held: bool = True,
        month: date | None = None,
    ) -> None:
        """Tell the model; `month` = that of the books when the true one is closed or too long ago."""
        account = request.person.account
        if free:
            account.held -= request.hold if held else 0
            return
        booked = month or month_of(ended_at)
        group = Group(month_of(ended_at) < booked, request.model, self.pinned(request))
        cost = account.used(booked, group, disjoint(usage), request.hold if held else None, booked_at)
        if group.late:
            account.late[booked][month_of(ended_at)] += cost


def checkpoint(request: Request, share: float) -> Checkpoint:
    """The running counts of a request that has come so far."""
    assert request.granted is not None
    output = int(request.usage.output * share)
    usage = TokenUsage(input=request.usage.input, output=output) if share else NO_TOKENS
    return Checkpoint(request.granted.request_id, usage)


def after(instant: datetime, record: UsageRecord) -> datetime:
    """When a record says that it ended."""
    return instant + timedelta(microseconds=record.duration_us)
