"""Requests of a schedule: what the gateway does with billing, and a journal of what really happened."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from msgspec.structs import replace

from billing.metering.records import (
    Checkpoint,
    HoldGranted,
    HoldRequest,
    Labels,
    OpenRecord,
    Outcome,
    UsageRecord,
    label_lines,
)
from core.errors import PenstockError
from core.tokens import NO_TOKENS, TokenUsage
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.platform import ApiProcess

MODEL, TIER = "river-7b", "standard"
EXTEND_TOKENS = 64
"""Output tokens by which a hold is extended at a time."""


@dataclass
class Plan:
    """What a request will do, drawn before the schedule begins."""

    at: float
    tenant: UUID
    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    whole: bool
    fails_first: bool
    """Whether the first engine fails after the prompt, and another answers."""
    prefill_s: float
    steps: list[tuple[float, int]]
    """Seconds until the engine's next event, and its tokens."""
    ends: Outcome
    leaves_after_s: float | None
    """When the client disconnects, from the request's receipt."""

    @property
    def labels(self) -> Labels | None:
        """Every third request names one of two end users."""
        return Labels(f"u{self.prompt_tokens % 2}") if self.prompt_tokens % 3 == 0 else None


@dataclass
class Request:
    """The journal of one request, kept outside of the simulated processes."""

    id: UUID
    plan: Plan
    process: "ApiProcess"
    hold: HoldGranted | None = None
    open_tried: bool = False
    opened: OpenRecord | None = None
    """The open line of the present attempt."""
    opened_at: float | None = None
    """When the open line had been written: the request is admitted."""
    limit: int = 0
    """Output tokens that may be relayed."""
    generated: TokenUsage = NO_TOKENS
    counted: TokenUsage = NO_TOKENS
    delivered: list[tuple[float, int]] = field(default_factory=list)
    """When how many output tokens had reached the client."""
    record: UsageRecord | None = None
    settled_at: float | None = None
    """When the meter had taken the end."""
    checkpoints: list[tuple[float, TokenUsage]] = field(default_factory=list)
    """When which counts had been written."""
    error: str = ""

    @property
    def admitted(self) -> bool:
        """Whether its open line was written."""
        return self.opened_at is not None

    def delivered_by(self, instant: float) -> int:
        """Output tokens that the client had at an instant."""
        return max((tokens for at, tokens in self.delivered if at <= instant), default=0)


def draw_plan(world: World, tenant: UUID, at: float) -> Plan:
    """A random request."""
    random = world.random
    total = random.choice((0, 1, 5, 20, 60, 200))
    steps = []
    left = total
    while left > 0:
        tokens = min(left, random.randint(1, max(1, total // 4)))
        steps.append((random.choice((0.001, 0.02, 0.3, 1.1)) * random.uniform(0.5, 1.5), tokens))
        left -= tokens
    prompt = random.randint(1, 400)
    fails = random.random()
    return Plan(
        at=at,
        tenant=tenant,
        prompt_tokens=prompt,
        cached_tokens=random.choice((0, 0, prompt // 2, prompt)),
        max_tokens=random.choice((0, total, 400)),
        whole=random.random() < 0.1,
        fails_first=random.random() < 0.3,
        prefill_s=random.choice((0.001, 0.05, 1.2)) * random.uniform(0.5, 1.5),
        steps=steps,
        ends=Outcome.ENGINE_FAILED if fails < 0.07 else Outcome.COMPLETED if total else Outcome.ZERO_OUTPUT,
        leaves_after_s=random.uniform(0.0, 3.0) if random.random() < 0.2 else None,
    )


async def serve(request: Request) -> None:
    """Take a request through hold, open line, answer and settlement, as `gateway.director.Director` does."""
    process, plan = request.process, request.plan
    holds, meter = process.holds, process.meter
    outcome: Outcome | None = None
    try:
        if not meter.ready:
            request.error = "not ready"
            return
        request.hold = hold = await holds.place(_hold_request(request))
        record = _open_record(request, hold)
        request.open_tried = True
        meter.open(record)
        request.opened, request.opened_at, request.limit = record, process.world.now, hold.output_tokens
        process.running[request.id] = request
        if plan.fails_first:
            await _fail_first(request, record)
        outcome = await _answer(request, whole=hold.whole)
    except asyncio.CancelledError:
        outcome = Outcome.INTERRUPTED if process.stopping else Outcome.CLIENT_CANCELLED
    except PenstockError as error:
        request.error = error.code
    finally:
        process.running.pop(request.id, None)
        if process.dead or process.world.over:
            pass
        elif request.opened is not None:
            request.record = _usage_record(request.opened, request, outcome or Outcome.ENGINE_FAILED)
            meter.settle(request.record)
            request.settled_at = process.world.now
        elif request.hold is not None:
            holds.void(request.id)


async def _fail_first(request: Request, record: OpenRecord) -> None:
    """Let the first engine process the prompt and fail, and write the open line of the second attempt."""
    plan = request.plan
    await asyncio.sleep(plan.prefill_s)
    request.generated = request.counted = TokenUsage(plan.prompt_tokens, plan.cached_tokens)
    await asyncio.sleep(1.5 * plan.prefill_s)
    second = replace(
        record, replica_id="h/1", boot_id="b2", earlier_attempts=1, earlier_usage=request.counted
    )
    request.process.meter.open(second)
    request.opened, request.generated, request.counted = second, NO_TOKENS, NO_TOKENS


async def _answer(request: Request, *, whole: bool) -> Outcome:
    """Count what the engine generates, and relay what is counted."""
    plan, world, holds = request.plan, request.process.world, request.process.holds
    await asyncio.sleep(plan.prefill_s)
    prompt = TokenUsage(input=plan.prompt_tokens, cached_input=plan.cached_tokens)
    request.generated = request.counted = prompt
    output = delivered = 0
    for wait_s, tokens in plan.steps:
        await asyncio.sleep(wait_s)
        output += tokens
        request.generated = TokenUsage(plan.prompt_tokens, plan.cached_tokens, output)
        if whole:
            continue
        while output > request.limit and not plan.max_tokens:
            if not await holds.extend(request.id, max(EXTEND_TOKENS, output - request.limit)):
                break
            request.limit += max(EXTEND_TOKENS, output - request.limit)
        counted = min(output, request.limit)
        request.counted = TokenUsage(plan.prompt_tokens, plan.cached_tokens, counted)
        if counted > delivered:
            delivered = counted
            request.delivered.append((world.now, delivered))
        if output > request.limit:
            return Outcome.LENGTH if plan.max_tokens else Outcome.BUDGET_STOPPED
    if whole:
        request.counted = request.generated
        request.delivered.append((world.now, output))
    return plan.ends


def _hold_request(request: Request) -> HoldRequest:
    plan = request.plan
    return HoldRequest(
        request_id=request.id,
        tenant_id=plan.tenant,
        project_id=plan.tenant,
        key_id=plan.tenant,
        model=MODEL,
        tier=TIER,
        max_input_tokens=plan.prompt_tokens + 10,
        max_output_tokens=plan.max_tokens,
        default_output_tokens=400,
        whole=plan.whole,
        labels=label_lines(plan.labels),
    )


def _open_record(request: Request, hold: HoldGranted) -> OpenRecord:
    plan = request.plan
    return OpenRecord(
        request_id=request.id,
        tenant_id=plan.tenant,
        project_id=plan.tenant,
        key_id=plan.tenant,
        model=MODEL,
        tier=TIER,
        region="r",
        price=hold.price,
        list_price=hold.list_price,
        admitted_at=hold.admitted_at,
        replica_id="h/0",
        boot_id="b",
        simulated=True,
        stream=not hold.whole,
        max_input_tokens=plan.prompt_tokens + 10,
        whole=hold.whole,
        max_output_tokens=hold.output_tokens if hold.whole else 0,
        labels=plan.labels,
    )


def _usage_record(opened: OpenRecord, request: Request, outcome: Outcome) -> UsageRecord:
    return UsageRecord(opened, outcome, request.counted, duration_us=1000)


def write_checkpoint(request: Request) -> None:
    """Write the counts of a running request when they have changed, as `gateway.open_requests` does once a second."""
    counted, written = request.counted, request.checkpoints
    if counted != (written[-1][1] if written else NO_TOKENS):
        request.process.meter.checkpoint(Checkpoint(request.id, counted))
        written.append((request.process.world.now, counted))
