"""What an attempt made the engine count beyond its usage: prompts of further choices, and tails of what was cut.

Engines count a prompt once per choice, usage counts it once. And when a stream is cut (the client left, the paid
tokens were used up, the engine died) the engine may have counted tokens that never arrived here: nobody can know how
many, but they are bounded by what was asked for and by the time since the engine was last heard.
"""

from math import ceil

from billing.metering.records import TAIL_TOKENS_PER_S, Unbilled
from core.tokens import TokenUsage
from gateway.schemas.common import PreparedRequest
from gateway.sse import StreamCodec
from scheduler.wire import Placement

ENGINE_ABORT_S = 2.0
"""An engine stops within this after its client is gone (DESIGN §12, promise 6)."""


def unbilled_tokens(
    *,
    cause: str,
    placement: Placement,
    codec: StreamCodec | None,
    prepared: PreparedRequest,
    context_len: int,
    usage: TokenUsage,
    charged: bool,
    silent_s: float,
) -> list[Unbilled]:
    """What is to be noted of one attempt; empty for most.

    `charged`: whether `usage` is on the usage row of this attempt. `silent_s`: seconds since the engine was heard.
    """
    per_prompt = int(prepared.fields.get("n") or 1)
    ended = codec is not None and (codec.done or codec.complete)
    whole = ended and codec is not None and codec.error is None and not codec.limit_reached
    started = per_prompt if whole else _choices_started(codec, prepared)
    again = max(started - 1, 0) * usage.input
    notes = []
    if again:
        notes.append(Unbilled("choices", placement.replica_id, placement.boot_id, input=again))
    own = TokenUsage() if charged else usage
    if whole and not own.total:
        return notes
    tail_input = tail_output = 0
    if not whole:
        tail_input = max(prepared.max_input_tokens * prepared.choices - usage.input - again, 0)
        if usage.input and prepared.choices == 1:
            tail_input = 0
        room = max((prepared.max_tokens or context_len) * prepared.choices - usage.output, 0)
        seen = ceil((max(silent_s, 0.0) + ENGINE_ABORT_S) * TAIL_TOKENS_PER_S) * prepared.choices
        tail_output = min(room, seen)
    if own.total or tail_input or tail_output:
        notes.append(
            Unbilled(
                cause,
                placement.replica_id,
                placement.boot_id,
                input=own.input,
                output=own.output,
                tail_input=tail_input,
                tail_output=tail_output,
            )
        )
    return notes


def _choices_started(codec: StreamCodec | None, prepared: PreparedRequest) -> int:
    """Choices of one prompt that have certainly yielded a token, when the stream was cut."""
    if codec is None:
        return 0
    if prepared.choices == 1:
        return 1
    per_prompt = int(prepared.fields.get("n") or 1)
    # With several prompts nobody can tell whose choice is whose: the tail bounds it.
    return codec.tracker.choices_started if per_prompt == prepared.choices else 0
