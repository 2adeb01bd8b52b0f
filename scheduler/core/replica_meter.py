"""Turns what happens on one replica into observations of its speed (`capacity_estimate`).

Two kinds of times are compared with the step model:

- *First tokens.* An engine computes prompts in order of arrival. So since the later of a prompt's placement and the
  replica's last first token it has computed this prompt, in steps with the running sequences. First tokens that come
  together were computed in one step, and are one observation.
- *Answers*, and parts of long ones. The engine has taken a step for every accepted group of their tokens, and has
  computed the prompts whose first tokens came meanwhile. Batch and context are means over that time.
"""

from typing import NamedTuple, Protocol

from scheduler.core.capacity_estimate import CapacityEstimate, Parts, overhead_of
from workers.step_time import decode_step_s, prefill_s
from workers.wire import Capacity


class Load(Protocol):
    """What the meter needs of a replica's load."""

    @property
    def decoding(self) -> int:
        """Sequences whose first token has come."""

    @property
    def context_tokens(self) -> int:
        """Tokens that a decode step attends to."""


SAME_STEP_S = 0.005
"""First tokens this close to each other came from one step; the shortest step of a large model takes longer."""
PARTIAL_S = 5.0
"""Seconds of a running answer that are an observation of their own: long answers would tell too late."""
BOUNDARY_STEPS = 0.5
"""Steps that a prompt waits until the one in progress ends."""


class Reading(NamedTuple):
    """The meter when an answer had `tokens`."""

    tokens: int
    at: float
    decoding_s: float
    """Integral of the decoding sequences over time."""
    context_s: float
    """Integral of the tokens that a step attends to over time."""
    prefilled_s: float
    """Seconds of prefill, under the stated capacity, of the prompts whose first tokens have come."""


NO_READING = Reading(0, -1.0, 0.0, 0.0, 0.0)


class _FirstTokens(NamedTuple):
    """First tokens of one step."""

    seconds: float
    prefill_s: float
    """Seconds of their prefill under the stated capacity."""
    tokens: float
    batch: int
    context: int
    fresh: bool
    """Whether nothing was in prefill when the first of them was placed."""


class ReplicaMeter:
    """The times of one incarnation of a replica. All capacities are the stated one."""

    __slots__ = (
        "_at",
        "_context_s",
        "_decoding_s",
        "_first_tokens",
        "_last_first_at",
        "_prefilled_s",
        "estimate",
    )

    def __init__(self, estimate: CapacityEstimate) -> None:
        self.estimate = estimate
        self._at = self._decoding_s = self._context_s = self._prefilled_s = 0.0
        self._last_first_at = float("-inf")
        self._first_tokens: _FirstTokens | None = None

    def advance(self, now: float, load: Load) -> None:
        """Count the time since the last call, in which `load` ran. To be called before the load changes."""
        if now > self._at:
            self._decoding_s += (now - self._at) * load.decoding
            self._context_s += (now - self._at) * load.context_tokens
            self._at = now

    def on_first_token(
        self, uncached: float, prompt: int, load: Load, stated: Capacity, placed_at: float | None
    ) -> Reading:
        """Take the first token of a prompt, of whose tokens `uncached` had to be computed; returns the present reading.

        The time is that of the last `advance`. `placed_at` is None when it is not the time of the first token.
        """
        seconds = prefill_s(stated, uncached, prompt)
        self._prefilled_s += seconds
        if placed_at is not None:
            self._observe_first_token(uncached, seconds, placed_at, load, stated)
        return self._read(1)

    def _observe_first_token(
        self, tokens: float, prefill_s: float, placed_at: float, load: Load, stated: Capacity
    ) -> None:
        last_at, self._last_first_at = self._last_first_at, self._at
        seconds, group = self._at - max(placed_at, last_at), self._first_tokens
        if group is not None and seconds < SAME_STEP_S:
            self._first_tokens = group._replace(
                seconds=group.seconds + seconds,
                prefill_s=group.prefill_s + prefill_s,
                tokens=group.tokens + tokens,
            )
            return
        if group is not None:
            steps = max(1.0, group.tokens / stated.max_batched_tokens) + BOUNDARY_STEPS * group.fresh
            overhead_s = overhead_of(stated) if group.fresh else 0.0
            parts = _parts(stated, group.prefill_s, steps, group.batch, group.context, overhead_s)
            self.estimate.observe(parts, group.seconds)
        fresh = placed_at >= last_at
        self._first_tokens = _FirstTokens(
            seconds, prefill_s, tokens, load.decoding, load.context_tokens, fresh
        )

    def on_tokens(self, since: Reading, tokens: int, stated: Capacity) -> Reading:
        """Take an answer that has `tokens` at the time of the last `advance`; returns the present reading."""
        present = self._read(tokens)
        seconds, new = self._at - since.at, tokens - since.tokens
        if seconds > 0.0 and new > 0 and since.tokens:
            batch = (present.decoding_s - since.decoding_s) / seconds
            context = (present.context_s - since.context_s) / seconds
            steps = new / max(1.0, stated.accept_per_step)
            self.estimate.observe(
                _parts(stated, present.prefilled_s - since.prefilled_s, steps, batch, context), seconds
            )
        return present

    def _read(self, tokens: int) -> Reading:
        return Reading(tokens, self._at, self._decoding_s, self._context_s, self._prefilled_s)


def _parts(
    stated: Capacity, prefill_s: float, steps: float, batch: float, context: float, overhead_s: float = 0.0
) -> Parts:
    """The parts of the time of `steps` decode steps, in which prompts of `prefill_s` seconds were computed too."""
    sequences_s = stated.step_per_seq_s * batch
    base_s = decode_step_s(stated, batch, 0.0) - sequences_s
    return Parts(
        prefill_s,
        steps * base_s,
        steps * sequences_s,
        overhead_s,
        steps * stated.step_per_kv_token_s * context,
    )
