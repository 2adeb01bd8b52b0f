"""The decoding requests of an engine in aggregate: sums and calendars instead of per-request work in each step.

A sequence's number of steps is drawn when its decoding begins, and its tokens are spread evenly over them. The
KV cache that it reads therefore grows linearly, and the steps at which it ends or needs another block are known
in advance.
"""

import heapq
from dataclasses import dataclass, field

from sim.engine.step_model.job import Job
from sim.engine.step_model.pool import Entry


@dataclass(slots=True, eq=False)
class Slot:
    """The engine's internal state of a job."""

    job: Job
    order: int
    """Admission number; breaks ties in the calendars, so that slots are never compared."""
    arrived: int
    """Number of the request in order of arrival."""
    computed: int = 0
    """Number of tokens in blocks, as of the last prefill chunk."""
    target: int = 0
    """Number of tokens to prefill: the prompt and, after a preemption, the tokens generated before it."""
    entries: list[Entry] = field(default_factory=list)
    """Cached blocks that the slot holds, a chain from the start of the prompt."""
    anonymous: int = 0
    """Number of further blocks that the slot holds."""
    held_tokens: int = 0
    """Capacity of all its blocks, in tokens."""
    published: int = 0
    """Number of hashes that were offered to the pool."""
    decoding: bool = False
    began_step: int = 0
    """The engine's step number when decoding began."""
    began_produced: int = 0
    steps: int = 0
    """Number of steps from `began_step` to the last token."""
    rate: float = 0.0
    """Number of tokens per step."""
    ends_step: int = 0
    grows_step: int = 0
    """Number of the step before which the slot needs another block; 0 = never."""


class Decodes:
    """All decoding slots. Calendar entries of slots that left or moved are ignored."""

    __slots__ = ("_drafts", "_ends", "_grows", "count", "kv", "rate", "step")

    def __init__(self, drafts: int) -> None:
        self.count = 0
        self.kv = 0.0
        """Number of KV cache tokens that the next step reads."""
        self.rate = 0.0
        """Growth of `kv` in tokens per step."""
        self.step = 0
        """Number of completed steps."""
        self._drafts = drafts
        self._ends: list[tuple[int, int, Slot]] = []
        self._grows: list[tuple[int, int, Slot]] = []

    def begin(self, slot: Slot, steps: int) -> None:
        """Begin to decode a slot whose prompt is complete, over the next `steps` steps; 0 = it has all its tokens."""
        job = slot.job
        slot.decoding = True
        slot.began_step = self.step
        slot.began_produced = job.produced
        slot.steps = steps
        slot.rate = (job.output_tokens - job.produced) / steps if steps else 0.0
        slot.ends_step = self.step + steps
        self.count += 1
        self.kv += slot.computed
        self.rate += slot.rate
        if steps:
            heapq.heappush(self._ends, (slot.ends_step, slot.order, slot))
            self.note_growth(slot)

    def leave(self, slot: Slot) -> None:
        """Remove a slot that ends or is preempted; the `produced` of its job is updated."""
        slot.job.produced = self.produced(slot)
        slot.decoding = False
        self.count -= 1
        self.rate -= slot.rate
        self.kv -= slot.computed + slot.rate * (self.step - slot.began_step)
        if not self.count:  # discard accumulated rounding errors
            self.rate = self.kv = 0.0

    def produced(self, slot: Slot) -> int:
        """Return the tokens generated so far."""
        began = slot.began_produced
        if not slot.steps:
            return began
        return began + (self.step - slot.began_step) * (slot.job.output_tokens - began) // slot.steps

    def advance(self, steps: int) -> None:
        """Advance by `steps` completed steps."""
        self.kv += self.rate * steps
        self.step += steps

    def steps_to_end(self) -> int:
        """Return the steps until the first completion; at least one slot must be decoding."""
        ends = self._ends
        while not ends[0][2].decoding or ends[0][2].ends_step != ends[0][0]:
            heapq.heappop(ends)
        return ends[0][0] - self.step

    def ended(self) -> Slot | None:
        """Return a slot whose last step is complete; the caller must remove it before the next call. None = no
        such slot.
        """
        ends = self._ends
        while ends and ends[0][0] <= self.step:
            step, _order, slot = heapq.heappop(ends)
            if slot.decoding and slot.ends_step == step:
                return slot
        return None

    def note_growth(self, slot: Slot) -> None:
        """Record the step before which the slot's blocks no longer hold its tokens and drafts."""
        job, steps = slot.job, slot.steps
        slot.grows_step = 0
        if slot.held_tokens >= job.prompt_tokens + job.output_tokens:
            return
        began = slot.began_produced
        too_many = slot.held_tokens - job.prompt_tokens - began - self._drafts + 1
        done = max(0, -(-too_many * steps // (job.output_tokens - began)))
        if done < steps:
            slot.grows_step = slot.began_step + done + 1
            heapq.heappush(self._grows, (slot.grows_step, slot.order, slot))

    def growing(self, due: int) -> Slot | None:
        """Return a slot that needs a block before step `due` or an earlier one, earliest first; None = no such
        slot.
        """
        grows = self._grows
        while grows and grows[0][0] <= due:
            step, _order, slot = heapq.heappop(grows)
            if slot.decoding and slot.grows_step == step:
                return slot
        return None
