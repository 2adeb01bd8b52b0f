"""What the gateway and billing say to each other about one request: hold, open line, checkpoint, usage record."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from core.tokens import NO_TOKENS, TokenUsage


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


class Checkpoint(msgspec.Struct, tag="checkpoint"):
    """Running counts of a live request, once a second."""

    request_id: UUID
    usage: TokenUsage


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

    @property
    def cost(self) -> int:
        """Picodollars to charge."""
        return 0 if self.outcome.free else self.open.price.cost(self.usage)
