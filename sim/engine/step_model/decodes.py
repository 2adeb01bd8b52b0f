"""The decoding requests of an engine, in aggregate: sums and calendars instead of a look at each of them.

A sequence's number of steps is drawn when its decoding begins; its tokens come evenly over them. So the KV cache it
reads grows linearly, and the steps at which it ends or needs another block are known beforehand.
"""

import heapq
from dataclasses import dataclass, field

from sim.engine.step_model.job import Job
from sim.engine.step_model.pool import Entry


@dataclass(slots=True, eq=False)
class Slot:
    """An engine's own account of a job."""

    job: Job
    order: int
    """Counts up with admissions; breaks ties in the calendars, so that slots are never compared."""
    computed: int = 0
    """Tokens in blocks, as of the last prefill chunk."""
    target: int = 0
    """Tokens to prefill: the prompt, and after a preemption what had been generated too."""
    entries: list[Entry] = field(default_factory=list)
    """Findable blocks it holds, a chain from the start of the prompt."""
    anonymous: int = 0
    """Further blocks it holds."""
    held_tokens: int = 0
    """Room in all its blocks, in tokens."""
    published: int = 0
    """Hashes that were offered to the pool."""
    decoding: bool = False
    began_step: int = 0
    """Engine's step number when decoding began."""
    began_produced: int = 0
    steps: int = 0
    """Steps from there to the last token."""
    rate: float = 0.0
    """Tokens a step."""
    ends_step: int = 0
    grows_step: int = 0
    """Step before which it needs another block; 0 = never."""


class Decodes:
    """All decoding slots. Calendar entries of slots that left or moved are ignored."""

    __slots__ = ("_drafts", "_ends", "_grows", "count", "kv", "rate", "step")

    def __init__(self, drafts: int) -> None:
        self.count = 0
        self.kv = 0.0
        """Tokens of cache that the next step reads."""
        self.rate = 0.0
        """By how many tokens `kv` grows a step."""
        self.step = 0
        """Steps that are over."""
        self._drafts = drafts
        self._ends: list[tuple[int, int, Slot]] = []
        self._grows: list[tuple[int, int, Slot]] = []

    def begin(self, slot: Slot, steps: int) -> None:
        """A slot whose prompt is complete gets its further tokens in the next `steps` steps; 0 = it has them all."""
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
        """It ends or is preempted; `produced` of its job is brought up to date."""
        slot.job.produced = self.produced(slot)
        slot.decoding = False
        self.count -= 1
        self.rate -= slot.rate
        self.kv -= slot.computed + slot.rate * (self.step - slot.began_step)
        if not self.count:  # no rounding error outlives the batch
            self.rate = self.kv = 0.0

    def produced(self, slot: Slot) -> int:
        """Tokens generated so far."""
        began = slot.began_produced
        if not slot.steps:
            return began
        return began + (self.step - slot.began_step) * (slot.job.output_tokens - began) // slot.steps

    def advance(self, steps: int) -> None:
        """So many steps are over."""
        self.kv += self.rate * steps
        self.step += steps

    def steps_to_end(self) -> int:
        """Steps until the first completion; at least one slot must be decoding."""
        ends = self._ends
        while not ends[0][2].decoding or ends[0][2].ends_step != ends[0][0]:
            heapq.heappop(ends)
        return ends[0][0] - self.step

    def ended(self) -> Slot | None:
        """A slot whose last step is over, to be made to leave before the next call."""
        ends = self._ends
        while ends and ends[0][0] <= self.step:
            step, _order, slot = heapq.heappop(ends)
            if slot.decoding and slot.ends_step == step:
                return slot
        return None

    def note_growth(self, slot: Slot) -> None:
        """Note the step before which the slot's blocks are too few for its tokens and drafts."""
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
        """A slot that needs a block before step `due` or an earlier one, earliest first."""
        grows = self._grows
        while grows and grows[0][0] <= due:
            step, _order, slot = heapq.heappop(grows)
            if slot.decoding and slot.grows_step == step:
                return slot
        return None
