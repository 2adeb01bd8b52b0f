"""Tokens that an engine counts for an attempt and that are not billed, for reconciliation with its counters.

Engines count a prompt once per choice, usage counts it once. And when a stream ends early (the client disconnects, the
paid tokens are used up, the engine fails), the engine may have counted tokens that never arrived. Their number is not
known, but it is bounded by what was asked for and by the time since the engine last sent data.
"""

from math import ceil

from billing.metering.records import TAIL_TOKENS_PER_S, Unbilled
from core.tokens import TokenUsage
from gateway.prompt_batches import batches_of
from gateway.schemas.common import PreparedRequest
from gateway.sse import StreamCodec
from scheduler.wire import Placement

ENGINE_ABORT_S = 2.0
"""Seconds within which an engine stops after its client has disconnected (promise 6)."""


def unbilled_tokens(
    *,
    cause: str,
    placement: Placement,
    codec: StreamCodec | None,
    prepared: PreparedRequest,
    context_len: int,
    usage: TokenUsage,
    in_row: TokenUsage,
    silent_s: float,
) -> list[Unbilled]:
    """Return the unbilled tokens of one attempt; empty for most attempts.

    `cause`: the cause of tokens after the last one that arrived (`Unbilled.cause`). `codec`: the attempt's stream, None
    when it was not opened. `context_len`: the model's, in tokens. `usage`: the tokens counted in this attempt;
    `in_row`: those of them that the usage row contains. `silent_s`: seconds since the engine last sent data.
    """
    per_prompt = prepared.choices_per_prompt
    ended = codec is not None and (codec.done or codec.complete)
    whole = ended and codec is not None and codec.error is None and not codec.truncated
    now, choices, max_input = _batch_of(codec, prepared, usage)
    started = per_prompt if whole else _choices_started(codec, prepared)
    repeated_now = max(started - 1, 0) * now.input
    repeated_input = (per_prompt - 1) * (usage.input - now.input) + repeated_now
    entries = []
    if repeated_input:
        entries.append(Unbilled("choices", placement.replica_id, placement.boot_id, input=repeated_input))
    own = usage - in_row
    if whole and not own.total:
        return entries
    tail_input = tail_output = 0
    if not whole:
        tail_input = max(max_input * per_prompt - now.input - repeated_now, 0)
        if usage.input and prepared.choices == 1:
            tail_input = 0
        limit = 0 if prepared.endpoint == "embeddings" else prepared.max_tokens or context_len
        room = max(limit * choices - now.output, 0)
        seen = ceil((max(silent_s, 0.0) + ENGINE_ABORT_S) * TAIL_TOKENS_PER_S) * choices
        tail_output = min(room, seen)
    if own.total or tail_input or tail_output:
        entries.append(
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
    return entries


def _batch_of(
    codec: StreamCodec | None, prepared: PreparedRequest, usage: TokenUsage
) -> tuple[TokenUsage, int, int]:
    """Counts, choices and the upper bound of prompt tokens of what the engine had at last; all of it for most requests.

    Of many prompts the engine has ended what it was sent before, so that its counts are known.
    """
    if not prepared.parts:
        return usage, prepared.choices, prepared.max_input_tokens
    batch = codec.batch if codec is not None else batches_of(prepared)[0]
    return codec.tracker.batch if codec is not None else usage, batch.choices, batch.max_input_tokens


def _choices_started(codec: StreamCodec | None, prepared: PreparedRequest) -> int:
    """Choices of one prompt that have certainly produced a token, when the stream has ended early."""
    if codec is None:
        return 0
    if prepared.choices == 1:
        return 1
    per_prompt = prepared.choices_per_prompt
    # With several prompts it is not known which choice belongs to which prompt: the tail bounds it.
    return codec.tracker.choices_started if per_prompt == prepared.choices else 0
