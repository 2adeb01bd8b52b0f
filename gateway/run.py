"""The state of one request, from receipt to settlement."""

import asyncio
from enum import Enum
from typing import Generic
from uuid import UUID

import msgspec

from billing.records import HoldGranted, OpenRecord, Outcome, Unbilled, UsageRecord
from core.errors import AuthenticationFailed, PenstockError, Unavailable
from core.tokens import NO_TOKENS, TokenUsage
from gateway.ports import EngineStream, GrantT, Model, Reply
from gateway.prefix import PromptBlocks
from gateway.schemas.common import Prepared
from gateway.sse import StreamCodec
from gateway.tails import unbilled
from scheduler.wire import Placement
from tenants.principal import Principal

_CUT_SHORT = (Outcome.CLIENT_CANCELLED, Outcome.INTERRUPTED)
"""Ends of which nothing is charged when nothing was generated; the others are free or have an answer."""


class Cut(Enum):
    """Why a request was ended from outside."""

    CLIENT_GONE = "client_gone"
    SLOW_CLIENT = "slow_client"
    REVOKED = "revoked"

    def error(self) -> PenstockError:
        """What to tell a client that is still there."""
        if self is Cut.REVOKED:
            return AuthenticationFailed(
                "This API key lost its access while the request ran: it was revoked, or its project or organisation "
                "was closed.",
                code="api_key_revoked",
            )
        return Unavailable(
            "The answer was not read fast enough and has been ended; read the stream without pauses.",
            code="slow_client",
        )


class Run(Generic[GrantT]):
    """What one request has acquired, counted and become. `Director._settle` resolves whatever is set here, once."""

    __slots__ = (
        "attempts", "blocks", "checkpointed", "codec", "collected", "collected_bytes", "committed",
        "cut_reason", "excluded", "failed", "failed_usage", "first_content_at", "grant", "heard_at", "hold",
        "input_estimate", "limit", "model", "open_record", "outcome", "output_estimate", "placed_at",
        "placement", "prepared", "principal", "rated_at", "received_at", "refusal", "reply", "request_id",
        "settled_at", "stream", "task", "touched_at", "writing_since",
    )  # fmt: skip

    def __init__(
        self,
        request_id: UUID,
        principal: Principal,
        prepared: Prepared,
        model: Model,
        reply: Reply,
        now: float,
    ) -> None:
        self.request_id = request_id
        self.principal = principal
        self.prepared = prepared
        self.model = model
        self.reply = reply
        self.task = asyncio.current_task()
        self.received_at = now
        self.rated_at = self.placed_at = self.first_content_at = self.settled_at = 0.0
        self.touched_at = 0.0
        """When the engine was last heard, while it is being waited for; 0 = it is not."""
        self.heard_at = 0.0
        """When the engine was last heard, once an attempt is over."""
        self.writing_since = 0.0
        """Since when the client has not taken what was written; 0 = nothing waits."""
        self.input_estimate = self.output_estimate = 0
        self.blocks: PromptBlocks | None = None
        """What the prompt begins with, once it is hashed."""
        self.grant: GrantT | None = None
        self.hold: HoldGranted | None = None
        self.placement: Placement | None = None
        self.open_record: OpenRecord | None = None
        """Set once the request is admitted: a usage row will follow."""
        self.limit = 0
        """Output tokens that may be relayed."""
        self.attempts = 0
        self.excluded: list[str] = []
        self.failed: list[Unbilled] = []
        self.failed_usage = NO_TOKENS
        """Tokens of failed earlier attempts."""
        self.codec: StreamCodec | None = None
        self.stream: EngineStream | None = None
        self.committed = False
        """The client has got content, or is about to: too late for another attempt."""
        self.collected: list[bytes] = []
        self.collected_bytes = 0
        self.checkpointed = 0
        self.outcome: Outcome | None = None
        self.refusal: BaseException | None = None
        """The error the request ended with, for metrics and traces."""
        self.cut_reason: Cut | None = None

    def cut(self, reason: Cut) -> None:
        """End the request from outside; the first reason stays. Its task settles it."""
        if self.cut_reason is None and self.task is not None:
            self.cut_reason = reason
            self.task.cancel()

    @property
    def usage(self) -> TokenUsage:
        """The counts of the current attempt so far.

        Engines tell the cached part of the prompt with their last chunk, which a request that is cut never gets: the
        scheduler's prediction stands in for it, so that leaving early does not cost the discount.
        """
        if self.codec is None:
            return NO_TOKENS
        usage = self.codec.tracker.usage
        if self.codec.tracker.cached_known or self.placement is None:
            return usage
        cached = min(self.placement.hit_tokens, usage.input)
        return msgspec.structs.replace(usage, cached_input=cached) if cached > 0 else usage

    def attempt_failed(self, placement: Placement, now: float) -> None:
        """Keep the counts of an attempt that may be followed by another one."""
        usage = self.usage
        self.failed += self._unbilled(placement, usage, now, cause="retried", charged=False)
        self.failed_usage += usage
        self.codec = None

    def placed_again(self, now: float) -> None:
        """The next attempt has a replica."""
        again_us = int((now - self.received_at) * 1e6)
        self.failed = [
            one if one.again_us else msgspec.structs.replace(one, again_us=again_us) for one in self.failed
        ]

    def _unbilled(
        self, placement: Placement, usage: TokenUsage, now: float, *, cause: str, charged: bool
    ) -> list[Unbilled]:
        return unbilled(
            cause=cause,
            placement=placement,
            codec=self.codec,
            prepared=self.prepared,
            context_len=self.model.context_len,
            usage=usage,
            charged=charged,
            silent_s=now - self.heard_at if self.heard_at else 0.0,
        )

    def record(self, now: float) -> UsageRecord:
        """The usage record as things stand; the request must be admitted and have an outcome."""
        if self.open_record is None or self.outcome is None:
            raise RuntimeError("a usage record needs an admitted request with an outcome")
        first = self.first_content_at
        queue_s = self.placement.queue_s if self.placement is not None else 0.0
        usage, not_charged, parts = self.usage, self.failed_usage, self.failed
        only_read = usage.output == 0 and self.outcome in _CUT_SHORT
        refused = self.outcome is Outcome.ZERO_OUTPUT and self.codec is not None and self.codec.head is None
        if self.placement is not None and self.attempts and not refused:
            cause = "engine_failed" if self.outcome is Outcome.ENGINE_FAILED else "cancelled_tail"
            parts = parts + self._unbilled(self.placement, usage, now, cause=cause, charged=not only_read)
        if only_read:
            # Only the prompt was read. The same holds for a process that died (billing/adoption.py).
            usage, not_charged = NO_TOKENS, not_charged + usage
        return UsageRecord(
            open=self.open_record,
            outcome=self.outcome,
            usage=usage,
            attempts=max(1, self.attempts),
            queue_us=int(queue_s * 1e6),
            ttft_us=int((first - self.received_at) * 1e6) if first else 0,
            duration_us=int((now - self.received_at) * 1e6),
            extra_unbilled=not_charged,
            unbilled=tuple(parts),
        )
