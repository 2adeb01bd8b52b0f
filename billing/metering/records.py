"""Messages between gateway and billing about one request: hold, open record, checkpoint, usage record."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from core.tokens import NO_TOKENS, TokenUsage

TAIL_TOKENS_PER_S = 512
"""Above any engine's speed for one sequence: bounds the tokens an engine counted after the last one received."""


class Outcome(StrEnum):
    """How an admitted request ended; every usage row has exactly one."""

    COMPLETED = "completed"
    LENGTH = "length"
    BUDGET_STOPPED = "budget_stopped"
    CLIENT_CANCELLED = "client_cancelled"
    ENGINE_FAILED = "engine_failed"
    ZERO_OUTPUT = "zero_output"
    INTERRUPTED = "interrupted"

    @property
    def free(self) -> bool:
        """Whether the request is recorded but not charged."""
        return self in (Outcome.ENGINE_FAILED, Outcome.ZERO_OUTPUT)


class PriceVersion(msgspec.Struct, frozen=True):
    """The prices pinned to a request at admission, in picodollars per token."""

    id: int
    input: int
    cached_input: int
    output: int
    reasoning: int

    def cost(self, usage: TokenUsage) -> int:
        """Picodollars of `usage`. Cached tokens are a part of input and reasoning a part of output; each token is
        priced once, by its class.
        """
        return (
            usage.uncached_input * self.input
            + usage.cached_input * self.cached_input
            + (usage.output - usage.reasoning) * self.output
            + usage.reasoning * self.reasoning
        )


class HoldRequest(msgspec.Struct, frozen=True):
    """Asks to reserve money for one request; the token counts are upper bounds computed from bytes."""

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model: str
    tier: str
    max_input_tokens: int
    max_output_tokens: int
    """The request's limit; 0 = it named none, and the database function chooses."""
    default_output_tokens: int = 4096
    """The model's default, an upper bound when the request names no limit."""
    whole: bool = False
    """Asks for a hold of all that the answer may cost, so that the engine may be asked for it in one piece."""
    labels: str | None = None
    """End user and tags (`label_lines`), whose budgets the hold counts in; None: the request names none."""
    adapter: str = ""
    """The LoRA adapter of the tenant that the request names, whose own price goes before the model's; empty = none."""


class HoldGranted(msgspec.Struct, frozen=True):
    """A placed hold, to be resolved exactly once by settling or voiding."""

    request_id: UUID
    admitted_at: datetime
    """By the database's clock."""
    price: PriceVersion
    list_price: PriceVersion
    amount: int
    """Picodollars held."""
    output_tokens: int
    """Output tokens that the hold covers; the gateway must extend it before it relays more."""
    whole: bool = False
    """Whether the hold covers all that the answer may cost, at no more than a sixteenth of what was available."""


class Unbilled(msgspec.Struct, frozen=True):
    """Tokens of one attempt that an engine counted, are not charged, and do not follow from the usage row.

    Used to reconcile usage with the engines' counters (billing/economics/). `tail_input` and `tail_output` bound the
    tokens that the engine may have counted after the last one received.
    """

    cause: str
    """retried: an earlier attempt that failed; choices: the prompt, counted once more per further choice;
    cancelled_tail: after a cancellation; engine_failed: after the last token of a failed engine, and what one may have
    generated of an answer in one piece that it then refused."""
    replica_id: str
    boot_id: str
    input: int = 0
    output: int = 0
    tail_input: int = 0
    tail_output: int = 0
    again_us: int = 0
    """Microseconds from the request's receipt to the placement of the next attempt; 0 = there was none."""


class Labels(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a request names for its customer's own accounts: an end user and tags. Checked text, or empty."""

    end_user: str = ""
    tags: dict[str, str] = {}
    """Values by name; a name begins with `tag_`."""


def label_lines(labels: Labels | None) -> str | None:
    """The labels as `penstock_hold` takes them: one a line as NAME=VALUE, the end user first, whose name is `user`.

    No name contains `=`, and no value a line break.
    """
    if labels is None:
        return None
    lines = [f"user={labels.end_user}"] if labels.end_user else []
    return "\n".join(lines + [f"{name}={value}" for name, value in labels.tags.items()]) or None


class OpenRecord(msgspec.Struct, tag="open", omit_defaults=True):
    """Written to the spool before dispatch; it admits the request, which then gets exactly one usage row.

    Written again before a further attempt, with that attempt's engine and what the earlier ones counted.
    """

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
    """Upper bound of the prompt tokens that an engine counts, over all choices; 0 = not known (older records)."""
    whole: bool = False
    """Whether the engine was asked for the answer in one piece. Its checkpoints count the prompt, which is charged
    even when the answer does not arrive."""
    max_output_tokens: int = 0
    """Upper bound of the output tokens of an answer in one piece, over all choices."""
    earlier_attempts: int = 0
    """Failed attempts on other engines."""
    earlier_usage: TokenUsage = NO_TOKENS
    """Tokens of these attempts, which are never charged."""
    earlier_unbilled: tuple[Unbilled, ...] = ()
    """What their engines counted, for reconciliation."""
    labels: Labels | None = None
    """None: the request names none."""
    gpu: str = ""
    """Class of the GPUs of the attempt's replica; empty = it has none, or they are not known."""


class Checkpoint(msgspec.Struct, tag="checkpoint"):
    """Counts of a running request, written once a second."""

    request_id: UUID
    usage: TokenUsage


class UsageRecord(msgspec.Struct, tag="usage"):
    """The end of an admitted request; settlement is idempotent by `open.request_id`."""

    open: OpenRecord
    outcome: Outcome
    usage: TokenUsage = NO_TOKENS
    attempts: int = 1
    queue_us: int = 0
    ttft_us: int = 0
    """Microseconds from receipt to the first byte of content; 0 = there was none."""
    duration_us: int = 0
    extra_unbilled: TokenUsage = NO_TOKENS
    """Tokens of failed attempts: recorded for reconciliation, never charged."""
    unbilled: tuple[Unbilled, ...] = ()
    """One entry per attempt and cause; empty for most requests."""

    @property
    def cost(self) -> int:
        """Picodollars to charge."""
        return 0 if self.outcome.free else self.open.price.cost(self.usage)
