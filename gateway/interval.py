"""How many tokens an engine puts into one event of a stream (vLLM's `stream_interval`).

Engines send the first token alone and at once, then one event per interval. Fewer events cost the engine and the
gateway less; the interval follows the predicted speed, so that what a customer sees does not change with it.
"""

STREAM_EVENTS_PER_S = 27.0
"""Events per second of a streamed answer that are aimed at: rounded to whole tokens this is 20 to 40 a second, and
every token of an engine that makes fewer than 40 a second per sequence."""
WHOLE_EVENT_S = 1.0
"""Seconds of tokens per event of an answer that is not streamed: the age of its running counts."""
UNKNOWN_WHOLE_INTERVAL = 16
"""The interval of an answer that is not streamed while the speed is not known."""
MAX_INTERVAL = 512
"""Most tokens per event, so that a wrong prediction cannot make a stream silent for long."""
_LEAST_ITL_S = 1e-6
HOLD_SHARE = 16
"""An interval is at most this share of the tokens that a hold covers when it may end before the answer does: an event
that exceeds the hold is withheld, and with it the part of it that the hold covers."""


def stream_interval(itl_s: float, *, streamed: bool, covered: int) -> int:
    """Return the tokens per event for an engine that is predicted to need `itl_s` seconds per token of a sequence.

    `itl_s` counts tokens, so it contains what speculative decoding accepts; 0 = not known. `streamed`: the customer
    asked for a stream. `covered`: output tokens per choice that the hold covers when the answer may outgrow it; 0 = it
    covers the whole answer.
    """
    if itl_s <= 0:
        interval = 1 if streamed else UNKNOWN_WHOLE_INTERVAL
    elif streamed:
        interval = round(1.0 / (max(itl_s, _LEAST_ITL_S) * STREAM_EVENTS_PER_S))
    else:
        interval = round(WHOLE_EVENT_S / max(itl_s, _LEAST_ITL_S))
    if covered:
        interval = min(interval, covered // HOLD_SHARE)
    return max(1, min(interval, MAX_INTERVAL))
