"""What the gateway and billing say to each other about one request: hold, open line, checkpoint, usage record."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from core.tokens import NO_TOKENS, TokenUsage

TAIL_TOKENS_PER_S = 512
"""More than engines generate for one sequence: bounds what they may have counted after the last token we saw."""


class Outcome(StrEnum):
    """How an admitted request ended; every usage row has exactly one (DESIGN §4)."""

    COMPLETED = "completed"
    LENGTH = "length"
    BUDGET_STOPPED = "budget_stopped"
    CLIENT_CANCELLED = "client_cancelled"
    ENGINE_FAILED = "engine_failed"
    ZERO_OUTPUT = "zero_output"
    INTERRUPTED = "interrupted"

    @property
    def free(self) -> bool:
        """Whether tokens are recorded and nothing is charged."""
        return self in (Outcome.ENGINE_FAILED, Outcome.ZERO_OUTPUT)


class PriceVersion(msgspec.Struct, frozen=True):
    """The prices pinned to a request at admission, in picodollars per token."""

    id: int
    input: int
    cached_input: int
    output: int
    reasoning: int

    def cost(self, usage: TokenUsage) -> int:
        """Picodollars of `usage`: cached is a part of input and reasoning a part of output, each priced once."""
        return (
            usage.uncached_input * self.input
            + usage.cached_input * self.cached_input
            + (usage.output - usage.reasoning) * self.output
            + usage.reasoning * self.reasoning
        )


class HoldRequest(msgspec.Struct, frozen=True):
    """Reserve money for one request. The amounts are upper bounds in tokens, taken from bytes."""

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model: str
    tier: str
    max_input_tokens: int
    max_output_tokens: int
    """What the request asked for; 0 = it named none, billing chooses (DESIGN §5)."""
    default_output_tokens: int = 4096
    """The model's default, used when the request names none."""


class HoldGranted(msgspec.Struct, frozen=True):
    """Money is reserved; resolve it exactly once by settling or voiding."""

    request_id: UUID
    admitted_at: datetime
    """By the database's clock."""
    price: PriceVersion
    list_price: PriceVersion
    amount: int
    """Picodollars held."""
    output_tokens: int
    """Output tokens the hold covers; the gateway must extend it before relaying more."""


class OpenRecord(msgspec.Struct, tag="open"):
    """Written to the spool before dispatch: from here on the request is admitted and gets one usage row."""

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model: str
    tier: str
    region: str
    price: PriceVersion
    list_price: PriceVersion
    admitted_at: datetime
    replica_id: str
    boot_id: str
    """The engine incarnation whose counters cover the request."""
    simulated: bool
    stream: bool
    max_input_tokens: int = 0
    """An upper bound of what engines may count of its prompt, over all choices; 0 = not known (an older record)."""


class Checkpoint(msgspec.Struct, tag="checkpoint"):
    """Running counts of a live request, once a second."""

    request_id: UUID
    usage: TokenUsage


class Unbilled(msgspec.Struct, frozen=True):
    """Tokens of one attempt that an engine counted and nobody pays for, where the usage row does not tell.

    For reconciliation with the engines' counters (billing/economics/). Where an attempt was cut off, the engine may
    have counted more than was seen: `tail_input` and `tail_output` bound that.
    """

    cause: str
    """retried: an attempt that failed before the last; choices: a prompt that the engine counts once per choice;
    cancelled_tail: cut by us or the client; engine_failed: what came after the last token seen."""
    replica_id: str
    boot_id: str
    input: int = 0
    output: int = 0
    tail_input: int = 0
    tail_output: int = 0
    again_us: int = 0
    """For an attempt that was followed by another: microseconds from receipt to the placement of the next."""


class UsageRecord(msgspec.Struct, tag="usage"):
    """The end of an admitted request. Settled once, idempotent by `open.request_id`."""

    open: OpenRecord
    outcome: Outcome
    usage: TokenUsage = NO_TOKENS
    attempts: int = 1
    queue_us: int = 0
    ttft_us: int = 0
    """Microseconds from receipt to the first content byte; 0 = there was none."""
    duration_us: int = 0
    extra_unbilled: TokenUsage = NO_TOKENS
    """Tokens of failed earlier attempts: recorded for reconciliation, never charged."""
    unbilled: tuple[Unbilled, ...] = ()
    """By attempt and cause; most requests have none."""

    @property
    def cost(self) -> int:
        """Picodollars to charge."""
        return 0 if self.outcome.free else self.open.price.cost(self.usage)
