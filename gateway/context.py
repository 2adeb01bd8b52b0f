"""The state of one request from receipt to settlement, in four parts and the way it ended.

`Request` holds who asks for what, `Reservations` the rates and the money reserved for it, `Routing` the replica and
the attempts, and `Answer` the engine's output. Instants are monotonic seconds; 0 means that the event has not
happened.
"""

import asyncio
from enum import Enum
from typing import Any, Generic
from uuid import UUID

import msgspec

from billing.metering.records import HoldGranted, OpenRecord, Outcome, Unbilled, UsageRecord
from core.errors import AuthenticationFailed, PenstockError, Unavailable
from core.tokens import NO_TOKENS, TokenUsage
from gateway.merge_chunks import AnswerMerger
from gateway.places import place_headers
from gateway.ports import EngineStream, GrantT, Headers, Model, Reply
from gateway.prefix import PromptBlocks
from gateway.schemas.common import PreparedRequest
from gateway.sse import StreamCodec
from gateway.unbilled_tokens import unbilled_tokens
from scheduler.wire import Placement
from tenants.principal import Principal


class AbortReason(Enum):
    """Why a request was aborted from outside its own task."""

    CLIENT_DISCONNECTED = "client_gone"
    SLOW_CLIENT = "slow_client"
    REVOKED = "revoked"
    MEMORY = "memory"
    SHUTDOWN = "shutdown"

    def error(self) -> PenstockError:
        """The error for a client that is still connected."""
        if self is AbortReason.REVOKED:
            return AuthenticationFailed(
                "This API key lost its access while the request ran: it was revoked, or its project or organisation "
                "was closed.",
                code="api_key_revoked",
            )
        if self is AbortReason.MEMORY:
            return Unavailable(
                "Large answers take too much memory at the moment; ask for a stream, or try again in a second.",
                code="answers_busy",
                retry_after_s=1.0,
            )
        if self is AbortReason.SHUTDOWN:
            return Unavailable(
                "The server that answered is being stopped and has ended the answer; send the request again.",
                code="shutting_down",
                retry_after_s=1.0,
            )
        return Unavailable(
            "The answer was not read fast enough and has been ended; read the stream without pauses.",
            code="slow_client",
        )


class Request:
    """Who asks for what. Set on receipt and not changed afterwards."""

    __slots__ = ("id", "id_text", "model", "prepared", "principal", "received_at", "reply", "tier")

    def __init__(
        self,
        request_id: UUID,
        principal: Principal,
        prepared: PreparedRequest,
        model: Model,
        reply: Reply,
        now: float,
        tier: str = "",
    ) -> None:
        """`tier`: the one that its price and its band follow; empty = the organisation's."""
        self.id = request_id
        self.id_text = str(request_id)
        self.principal = principal
        self.prepared = prepared
        self.model = model
        self.reply = reply
        self.received_at = now
        self.tier = tier or principal.tier


class Reservations(Generic[GrantT]):
    """What is reserved for the request: rates by estimates, money by an upper bound in tokens."""

    __slots__ = ("grant", "granted_at", "hold", "input_estimate", "output_estimate", "output_limit", "whole")

    def __init__(self) -> None:
        self.input_estimate = 0
        self.output_estimate = 0
        self.grant: GrantT | None = None
        self.granted_at = 0.0
        self.hold: HoldGranted | None = None
        self.output_limit = 0
        """Output tokens, over all choices, that may be relayed before the hold is extended."""
        self.whole = False
        """Whether the hold covers the longest answer and the engine is asked for it in one piece."""


class Routing:
    """The replica of the current attempt and the records of failed attempts."""

    __slots__ = (
        "attempts",
        "blocks",
        "excluded",
        "failed_unbilled",
        "failed_usage",
        "placed_at",
        "placement",
        "released",
    )

    def __init__(self) -> None:
        self.blocks: PromptBlocks | None = None
        """Hashes of the prompt's first blocks; None until they are computed."""
        self.placement: Placement | None = None
        self.released = False
        """Whether the placement is released: its engine has ended, while the client still reads."""
        self.placed_at = 0.0
        """When the first placement arrived."""
        self.attempts = 0
        """Number of attempts started."""
        self.excluded: list[str] = []
        """Ids of replicas on which an attempt has failed."""
        self.failed_unbilled: list[Unbilled] = []
        """Unbilled tokens of failed attempts, one entry per attempt and cause."""
        self.failed_usage = NO_TOKENS
        """Sum of the tokens of all failed attempts."""


class Answer:
    """The engine's output in the current attempt, and what of it was sent to the client."""

    __slots__ = (
        "checkpointed_tokens", "codec", "committed", "first_content_at", "held_bytes", "last_read_at", "merger",
        "reading_since", "stream", "timeout", "writing_since", "written_at",
    )  # fmt: skip

    def __init__(self) -> None:
        self.codec: StreamCodec | None = None
        self.stream: EngineStream | None = None
        self.timeout: asyncio.Timeout | None = None
        """The timeout of an attempt whose answer is awaited in one piece."""
        self.committed = False
        """Whether content was sent to the client, or is about to be. No further attempt is made then."""
        self.merger: AnswerMerger | None = None
        """The answer so far of a request that is not streamed; None for a stream."""
        self.held_bytes = 0
        """Bytes of an answer in one piece, while it arrives or is sent; a merged one is counted by its merger, too."""
        self.first_content_at = 0.0
        self.reading_since = 0.0
        """When the attempt began to read from the engine; 0 = no read is pending."""
        self.last_read_at = 0.0
        """When the engine last sent data in the attempt that ended last."""
        self.writing_since = 0.0
        """When the pending write to the client began; 0 = no write is pending."""
        self.written_at = 0.0
        """When the task last sent events to the client of a stream; a comment is none. `sent_at` has all events."""
        self.checkpointed_tokens = 0
        """Total tokens in the last checkpoint."""

    @property
    def heard_at(self) -> float:
        """When the engine last sent data, or the attempt began to read; 0 when neither has happened."""
        return max(self.reading_since, self.codec.read_at) if self.codec is not None else self.reading_since

    @property
    def sent_at(self) -> float:
        """When the client was last sent something; 0 before."""
        return max(self.written_at, self.codec.relayed_at) if self.codec is not None else self.written_at


class RequestContext(Generic[GrantT]):
    """The parts of one request, its task, and how it ended. `Settlement.settle` releases everything in it once."""

    __slots__ = (
        "abort_reason", "answer", "error", "open_record", "outcome", "request", "reserved", "routing", "settled_at",
        "task", "usage_record",
    )  # fmt: skip

    def __init__(self, request: Request) -> None:
        self.request = request
        self.reserved: Reservations[GrantT] = Reservations()
        self.routing = Routing()
        self.answer = Answer()
        self.task = asyncio.current_task()
        """The task that `abort` cancels; None once the request is being settled."""
        self.open_record: OpenRecord | None = None
        """Set when the request is admitted; an admitted request gets a usage row."""
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        """The error that the request ended with, for metrics and traces; None if it succeeded."""
        self.abort_reason: AbortReason | None = None
        self.settled_at = 0.0
        self.usage_record: UsageRecord | None = None
        """The record that the end of the answer was written from, to be settled as it is; None before."""

    def give_up_attempt(self) -> None:
        """End the current attempt as failed, which raises EngineFailed in the request's task."""
        answer = self.answer
        if answer.stream is not None:
            answer.stream.abort()
        elif answer.timeout is not None and not answer.timeout.expired():
            answer.timeout.reschedule(asyncio.get_running_loop().time())

    def end_answer(self) -> None:
        """End an answer that is not streamed, because of its memory: with its next event while it is merged."""
        if self.outcome is None and self.answer.merger is not None:
            self.answer.merger.end_early()
        else:
            self.abort(AbortReason.MEMORY if self.outcome is None else AbortReason.SLOW_CLIENT)

    def abort(self, reason: AbortReason) -> None:
        """End the request by cancelling its task. Only the first reason counts; a settled request is left alone."""
        if self.abort_reason is None and self.task is not None:
            self.abort_reason = reason
            self.task.cancel()

    @property
    def usage(self) -> TokenUsage:
        """Tokens of the current attempt so far.

        Engines report the cached part of the prompt in their last chunk. An aborted request does not receive that
        chunk; the scheduler's prediction is used instead, so that the customer keeps the discount.
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
    def answer_bytes(self) -> int:
        """Bytes kept of an answer that is not streamed."""
        answer = self.answer
        return answer.held_bytes + (answer.merger.size if answer.merger is not None else 0)

    def take_headers(self) -> Headers:
        """The headers of the answer: x-ratelimit-*, which are sent once and not kept while it runs, and where it runs,
        if that is known by now."""
        grant, placement = self.reserved.grant, self.routing.placement
        headers: Headers = []
        if grant is not None:
            headers, grant.headers = grant.headers, []
        return headers if placement is None else headers + place_headers(placement)

    def record_failed_attempt(self, now: float) -> Placement:
        """Record the tokens of the failed attempt, exclude its replica, and return the placement to release."""
        routing, placement, usage = self.routing, self.routing.placement, self.usage
        if placement is None:
            raise RuntimeError("an attempt needs a placement")
        routing.failed_unbilled += self.unbilled_of_attempt(
            placement, usage, now, cause="retried", in_row=NO_TOKENS
        )
        routing.failed_usage += usage
        routing.excluded.append(placement.replica_id)
        routing.placement = None
        self.answer.codec = None
        return placement

    def begin_next_attempt(self, placement: Placement, now: float) -> None:
        """Set the replica of the next attempt. The records of failed attempts get the time since receipt."""
        self.routing.placement = placement
        again_us = int((now - self.request.received_at) * 1e6)
        self.routing.failed_unbilled = [
            one if one.again_us else msgspec.structs.replace(one, again_us=again_us)
            for one in self.routing.failed_unbilled
        ]

    def unbilled_of_attempt(
        self, placement: Placement, usage: TokenUsage, now: float, *, cause: str, in_row: TokenUsage
    ) -> list[Unbilled]:
        """Tokens that the engine may have counted in the current attempt and that are not billed.

        See `gateway.unbilled_tokens.unbilled_tokens` for `cause` and `in_row`.
        """
        answer, request = self.answer, self.request
        return unbilled_tokens(
            cause=cause,
            placement=placement,
            codec=answer.codec,
            prepared=request.prepared,
            context_len=request.model.context_len,
            usage=usage,
            in_row=in_row,
            silent_s=now - answer.last_read_at if answer.last_read_at else 0.0,
        )


AnyContext = RequestContext[Any]
