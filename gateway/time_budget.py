"""How long a request may wait for its engine, in seconds.

Three bounds apply while an engine is silent. A silent attempt ends after `SILENCE_S`, or after `SLOWDOWN` times the
predicted gap if that is longer. It ends after `STALLED_S`, or twice the gap, when the engine's token counters have not
moved either: the engine does not work then, on this or on any other request. And a request has a deadline for its first
content, of which the first attempt leaves enough for a second one: the wait for a replica and a silent attempt there.

The gap is the time until data is expected: before the first content the predicted time to first token, for an answer in
one piece with that of its tokens, and afterwards the time between two events.
"""

from collections.abc import Callable

import msgspec

from gateway.context import AnyContext
from scheduler.wire import Placement, PoolSnapshot

SCRAPE_AGE_S = 5.0
"""Age above which the last scrape of an engine says nothing of what it does now."""
SILENCE_S = 60.0
"""Least time that an attempt may be silent while its engine's counters move."""
SLOWDOWN = 5.0
"""How much slower than predicted an engine may be."""
STALLED_S = 20.0
"""Least time that an attempt may be silent while its engine's counters stand still. Snapshots are up to 3 s old."""
STALLED_SLOWDOWN = 2.0
"""As SLOWDOWN, for an engine whose counters stand still: engines count a prompt when all of it is prefilled."""
DEADLINE_S = 300.0
"""Least time from the first placement to the first content, over all attempts."""
PLACE_S = 30.0
"""Time to wait for the replica of a second attempt."""
EVENT_S = 1.0
"""Time between two events of an engine that sends several tokens in one (gateway/interval.py)."""
UNKNOWN_ITL_S = 0.1
"""Seconds per token while the speed is not known."""


def longest_silence_s(gap_s: float) -> float:
    """Longest silence of an attempt that is expected to send data after `gap_s`."""
    return max(SILENCE_S, SLOWDOWN * gap_s)


def longest_stall_s(gap_s: float) -> float:
    """Longest silence while the engine's counters stand still."""
    return max(STALLED_S, STALLED_SLOWDOWN * gap_s)


def deadline_s(gap_s: float) -> float:
    """Time from the first placement to the first content, over all attempts."""
    return max(DEADLINE_S, SLOWDOWN * gap_s)


def first_attempt_s(gap_s: float) -> float:
    """The part of `deadline_s` that the first attempt may use: at least half of it."""
    whole_s = deadline_s(gap_s)
    second_s = PLACE_S + max(SILENCE_S, STALLED_SLOWDOWN * gap_s)
    return whole_s - min(second_s, whole_s / 2)


def whole_answer_s(placement: Placement, tokens: int) -> float:
    """Predicted time of an answer in one piece with `tokens` tokens per choice."""
    return placement.predicted_ttft_s + tokens * (placement.predicted_itl_s or UNKNOWN_ITL_S)


def gap_to_content_s(context: AnyContext, placement: Placement) -> float:
    """The predicted time from dispatch to the first content."""
    if context.reserved.whole:
        tokens = context.reserved.output_limit // context.request.prepared.choices
        return whole_answer_s(placement, tokens)
    return placement.predicted_ttft_s


def attempt_ends_at(context: AnyContext, placement: Placement) -> float:
    """When the current attempt must have brought content, in monotonic seconds."""
    gap_s = gap_to_content_s(context, placement)
    may_follow = context.routing.attempts <= 1
    return context.routing.placed_at + (first_attempt_s(gap_s) if may_follow else deadline_s(gap_s))


class _Activity(msgspec.Struct):
    """What one engine was last seen to do, and the monotonic instants at which that was news."""

    counters: tuple[float, ...]
    moved_at: float
    scrape: int
    scraped_at: float


class EngineActivity:
    """When the counters of each engine moved last. One per process; `observe` runs once a second."""

    def __init__(self, snapshot: Callable[[], PoolSnapshot]) -> None:
        """`snapshot` returns the live state of the replicas."""
        self._snapshot = snapshot
        self._at_unix_ms = -1
        self._engines: dict[tuple[str, str], _Activity] = {}
        """By replica and incarnation."""

    def observe(self, now: float) -> None:
        """Take the counters of the last snapshot.

        They contain the use of the KV cache, which grows with each part of a long prompt: engines count the prompt
        itself only at its end.
        """
        found = self._snapshot()
        if found.at_unix_ms == self._at_unix_ms:
            return
        self._at_unix_ms = found.at_unix_ms
        before, self._engines = self._engines, {}
        for status in found.replicas:
            tokens = status.counters.prompt_tokens + status.counters.generation_tokens
            if not tokens:
                continue  # an engine without counters
            key = (status.replica_id, status.boot_id)
            counters = (tokens, status.kv_usage, status.running, status.waiting)
            known = before.get(key)
            if known is None:
                known = _Activity(counters, now, status.scrape, now)
            if known.counters != counters:
                known.counters, known.moved_at = counters, now
            if known.scrape != status.scrape:
                known.scrape, known.scraped_at = status.scrape, now
            self._engines[key] = known

    def still_since(self, placement: Placement, now: float) -> float:
        """Since when the engine's counters stand still, in monotonic seconds; `now` when they are not known now."""
        found = self._engines.get((placement.replica_id, placement.boot_id))
        return found.moved_at if found is not None and now - found.scraped_at <= SCRAPE_AGE_S else now


def time_to_place_again_s(context: AnyContext, placement: Placement, now: float) -> float:
    """The time that a second attempt may wait for its replica, after the one on `placement` has failed."""
    ends_at = context.routing.placed_at + deadline_s(gap_to_content_s(context, placement))
    return max(0.0, min(PLACE_S, ends_at - now))


def whole_attempt_s(context: AnyContext, placement: Placement, now: float) -> float:
    """The time that an engine may take for an answer in one piece, in the attempt that begins now."""
    longest_s = longest_silence_s(gap_to_content_s(context, placement))
    return max(0.0, min(longest_s, attempt_ends_at(context, placement) - now))


def is_overdue(context: AnyContext, placement: Placement, activity: EngineActivity, now: float) -> bool:
    """Whether the engine of an attempt that awaits data has been silent for too long."""
    answer = context.answer
    silent_s = now - answer.heard_at
    if answer.committed:
        if silent_s <= STALLED_S:
            return False
        begins = answer.codec is not None and answer.codec.read_at < answer.reading_since
        # Further prompts are prefilled as the first ones were.
        gap_s = max(EVENT_S, placement.predicted_ttft_s if begins else placement.predicted_itl_s)
    else:
        gap_s = gap_to_content_s(context, placement)
        if now > attempt_ends_at(context, placement):
            return True
    if silent_s <= STALLED_S:
        return False
    if silent_s > longest_silence_s(gap_s):
        return True
    # An answer in one piece is silent for as long as it takes; its tokens move the counters once it is prefilled.
    stalled_gap_s = placement.predicted_ttft_s if context.reserved.whole else gap_s
    still_s = now - max(activity.still_since(placement, now), answer.heard_at)
    return still_s > longest_stall_s(stalled_gap_s)
