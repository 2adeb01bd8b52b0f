"""The state of one request, from receipt to settlement, in four parts and the way it ended.

`Request` says who asks for what, `Reservations` what is reserved for it, `Routing` where it runs, and `Answer` what
came back. Each step of the request's life writes to the part that it is about.
"""

import asyncio
from enum import Enum
from typing import Any, Generic
from uuid import UUID

import msgspec

from billing.metering.records import HoldGranted, OpenRecord, Outcome, Unbilled
from core.errors import AuthenticationFailed, PenstockError, Unavailable
from core.tokens import NO_TOKENS, TokenUsage
from gateway.ports import EngineStream, GrantT, Headers, Model, Reply
from gateway.prefix import PromptBlocks
from gateway.schemas.common import PreparedRequest
from gateway.sse import StreamCodec
from gateway.unbilled_tokens import unbilled_tokens
from scheduler.wire import Placement
from tenants.principal import Principal


class AbortReason(Enum):
    """Why a request was ended from outside."""

    CLIENT_DISCONNECTED = "client_gone"
    SLOW_CLIENT = "slow_client"
    REVOKED = "revoked"

    def error(self) -> PenstockError:
        """What to tell a client that is still there."""
        if self is AbortReason.REVOKED:
            return AuthenticationFailed(
                "This API key lost its access while the request ran: it was revoked, or its project or organisation "
                "was closed.",
                code="api_key_revoked",
            )
        return Unavailable(
            "The answer was not read fast enough and has been ended; read the stream without pauses.",
            code="slow_client",
        )


class Request:
    """Who asks for what. Set on receipt and never changed."""

    __slots__ = ("id", "model", "prepared", "principal", "received_at", "reply")

    def __init__(
        self,
        request_id: UUID,
        principal: Principal,
        prepared: PreparedRequest,
        model: Model,
        reply: Reply,
        now: float,
    ) -> None:
        self.id = request_id
        self.principal = principal
        self.prepared = prepared
        self.model = model
        self.reply = reply
        self.received_at = now
        """Monotonic seconds, as all instants of a request."""


class Reservations(Generic[GrantT]):
    """What is reserved for the request: rates by learned estimates, money by an upper bound."""

    __slots__ = ("grant", "granted_at", "hold", "input_estimate", "output_estimate", "output_limit")

    def __init__(self) -> None:
        self.input_estimate = 0
        self.output_estimate = 0
        self.grant: GrantT | None = None
        self.granted_at = 0.0
        self.hold: HoldGranted | None = None
        self.output_limit = 0
        """Output tokens that the hold covers, over all choices: no more are relayed before it is extended."""


class Routing:
    """Where the request runs, and which attempts have failed."""

    __slots__ = (
        "attempts",
        "blocks",
        "excluded",
        "failed_unbilled",
        "failed_usage",
        "placed_at",
        "placement",
    )

    def __init__(self) -> None:
        self.blocks: PromptBlocks | None = None
        """Hashes of the prompt's first blocks, once they are computed."""
        self.placement: Placement | None = None
        self.placed_at = 0.0
        """When the first placement was made."""
        self.attempts = 0
        """Attempts that were started."""
        self.excluded: list[str] = []
        """Replicas on which an attempt has failed."""
        self.failed_unbilled: list[Unbilled] = []
        """Unbilled tokens of failed attempts, by attempt and cause."""
        self.failed_usage = NO_TOKENS
        """Tokens of all failed attempts together."""


class Answer:
    """What the engine has sent, and what the client has got of it."""

    __slots__ = (
        "checkpointed_tokens", "codec", "collected", "collected_bytes", "committed", "first_content_at", "last_read_at",
        "reading_since", "stream", "writing_since",
    )  # fmt: skip

    def __init__(self) -> None:
        self.codec: StreamCodec | None = None
        self.stream: EngineStream | None = None
        self.committed = False
        """The client has got content, or is about to: no other attempt is possible."""
        self.collected: list[bytes] = []
        """Events of an answer that is not streamed."""
        self.collected_bytes = 0
        self.first_content_at = 0.0
        self.reading_since = 0.0
        """When the engine last sent something, while more is awaited; 0 = nothing is awaited."""
        self.last_read_at = 0.0
        """When the engine last sent something in the attempt that ended last."""
        self.writing_since = 0.0
        """Since when a write to the client has not completed; 0 = no write is pending."""
        self.checkpointed_tokens = 0
        """Tokens in the last checkpoint."""


class RequestContext(Generic[GrantT]):
    """One request: its parts, its task, and how it ended. `Settlement.settle` releases what it holds, once."""

    __slots__ = (
        "abort_reason", "answer", "error", "open_record", "outcome", "request", "reserved", "routing", "settled_at",
        "task",
    )  # fmt: skip

    def __init__(self, request: Request) -> None:
        self.request = request
        self.reserved: Reservations[GrantT] = Reservations()
        self.routing = Routing()
        self.answer = Answer()
        self.task = asyncio.current_task()
        """The task to cancel when the request is cut; None once it is too late for that."""
        self.open_record: OpenRecord | None = None
        """Set once the request is admitted: from then on it gets a usage row."""
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        """The error that the request ended with, for metrics and traces."""
        self.abort_reason: AbortReason | None = None
        self.settled_at = 0.0

    def abort(self, reason: AbortReason) -> None:
        """End the request from outside by cancelling its task; the first reason stays."""
        if self.abort_reason is None and self.task is not None:
            self.abort_reason = reason
            self.task.cancel()

    @property
    def usage(self) -> TokenUsage:
        """The counts of the current attempt so far.

        Engines report the cached part of the prompt with their last chunk. A request that is cut never gets that
        chunk; the scheduler's prediction takes its place, so that the customer keeps the discount.
        """
        codec, placement = self.answer.codec, self.routing.placement
        if codec is None:
            return NO_TOKENS
        usage = codec.tracker.usage
        if codec.tracker.cached_known or placement is None:
            return usage
        cached = min(placement.hit_tokens, usage.input)
        return msgspec.structs.replace(usage, cached_input=cached) if cached > 0 else usage

    @property
    def rate_headers(self) -> Headers:
        """The x-ratelimit-* headers of the answer."""
        return self.reserved.grant.headers if self.reserved.grant is not None else []

    def record_failed_attempt(self, now: float) -> Placement:
        """Keep the counts of the failed attempt, exclude its replica, and return the placement to release."""
        routing, placement, usage = self.routing, self.routing.placement, self.usage
        if placement is None:
            raise RuntimeError("an attempt needs a placement")
        routing.failed_unbilled += self.unbilled_of_attempt(
            placement, usage, now, cause="retried", charged=False
        )
        routing.failed_usage += usage
        routing.excluded.append(placement.replica_id)
        routing.placement = None
        self.answer.codec = None
        return placement

    def begin_next_attempt(self, placement: Placement, now: float) -> None:
        """The next attempt has a replica: the failed attempts' records get the time that this took."""
        self.routing.placement = placement
        again_us = int((now - self.request.received_at) * 1e6)
        self.routing.failed_unbilled = [
            one if one.again_us else msgspec.structs.replace(one, again_us=again_us)
            for one in self.routing.failed_unbilled
        ]

    def unbilled_of_attempt(
        self, placement: Placement, usage: TokenUsage, now: float, *, cause: str, charged: bool
    ) -> list[Unbilled]:
        """What the engine may have counted in the current attempt beyond `usage` (gateway/unbilled_tokens.py)."""
        answer, request = self.answer, self.request
        return unbilled_tokens(
            cause=cause,
            placement=placement,
            codec=answer.codec,
            prepared=request.prepared,
            context_len=request.model.context_len,
            usage=usage,
            charged=charged,
            silent_s=now - answer.last_read_at if answer.last_read_at else 0.0,
        )


AnyContext = RequestContext[Any]
