"""What waits: a ticket, and one tenant's line of tickets in order of arrival."""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.wire import PlaceRequest

RequestKey = tuple[str, str]
"""Client and request id."""


class QueueOutcome(StrEnum):
    """How a queued request left the queue; every ticket gets exactly one."""

    PLACED = "placed"
    DEADLINE = "deadline"
    """It waited as long as it was willing to."""
    HOPELESS = "hopeless"
    """Waiting can no longer help: no replica will come, or not in time."""
    CANCELLED = "cancelled"
    CLIENT_GONE = "client_gone"


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """A request in the queue."""

    client: str
    request: PlaceRequest
    enqueued_at: float
    deadline_at: float
    seq: int
    admitted: bool = False
    """An earlier scheduler let it in: it stays until its deadline, whatever is predicted."""
    work: float = 0.0
    """Weighted tokens it asks for, as far as is known on arrival."""
    outcome: QueueOutcome | None = field(default=None)
    predicted_wait_s: float | None = None
    """Told by admission on arrival; None when there was nothing to predict from."""
    predicted_at: float = 0.0
    residual: float = 0.0
    """The correction in that prediction, a logarithm."""
    late: bool = False
    """Its wait was predicted (again) as that of a late request."""
    times_starved: int = 0
    """Times that it fitted nowhere while a request behind it went first, or while it held up those behind it."""
    hit_tokens: int = 0
    """Prompt tokens cached somewhere, as looked up at `hit_at`."""
    hit_at: float = -1e9

    @property
    def key(self) -> RequestKey:
        """What names it in the queue."""
        return self.client, self.request.request_id

    @property
    def sort_key(self) -> "SortKey":
        """Where it stands in its line."""
        return self.enqueued_at, self.seq, self


SortKey = tuple[float, int, QueuedRequest]
"""Arrival, number, ticket: sorts by age; a request announced again after a restart keeps its age."""


class Flow:
    """One tenant's requests of one band, oldest first, with the tenant's counter and what it runs.

    A sorted list: any place is found by bisection, and moving a few thousand pointers costs a microsecond.
    """

    __slots__ = (
        "charged_here",
        "counter",
        "kv_tokens",
        "name",
        "running",
        "turns",
        "waiting",
        "weight",
        "work",
    )

    def __init__(self, name: str, counter: float) -> None:
        self.name = name
        self.counter = counter
        """Service received: weighted tokens divided by the tenant's weight."""
        self.charged_here = 0.0
        """The part of `counter` that this scheduler has charged itself, net of refunds."""
        self.weight = 1.0
        self.waiting: list[SortKey] = []
        self.work = 0.0
        """Weighted tokens that wait."""
        self.running = 0
        self.kv_tokens = 0
        """KV tokens that its running requests plan with."""
        self.turns = 0
        """Picks made while both late and timely requests waited."""

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return (place[2] for place in self.waiting)

    def add(self, queued: QueuedRequest) -> None:
        """Let it stand where its age entitles it to."""
        bisect.insort(self.waiting, queued.sort_key)
        self.work += queued.work

    def remove(self, queued: QueuedRequest) -> None:
        """Take it out wherever it stands."""
        del self.waiting[self.rank(queued)]
        self.work = self.work - queued.work if self.waiting else 0.0

    def rank(self, queued: QueuedRequest) -> int:
        """How many stand before it."""
        return bisect.bisect_left(self.waiting, queued.sort_key)

    def late_count(self, late_before: float) -> int:
        """How many arrived before `late_before`."""
        return bisect.bisect_left(self.waiting, (late_before,))

    def next_request(self, late_before: float, oldest_every: int) -> QueuedRequest:
        """Who goes next: the oldest that can still be in time; every `oldest_every`-th time simply the oldest.

        Those that arrived before `late_before` are late. Raises IndexError when nobody waits.
        """
        oldest = self.waiting[0]
        if oldest_every <= 1 or oldest[0] >= late_before or (self.turns + 1) % oldest_every == 0:
            return oldest[2]
        timely = self.late_count(late_before)
        return self.waiting[timely][2] if timely < len(self.waiting) else oldest[2]

    def reorder_candidates(self, first: QueuedRequest, oldest_every: int, most: int) -> list[QueuedRequest]:
        """The one whose turn it is with those right behind it that may go in its place, at most so many together.

        When it is the oldest's turn, nobody may: that is what keeps everybody from starving.
        """
        if most <= 1 or len(self.waiting) == 1 or (self.turns + 1) % oldest_every == 0:
            return [first]
        rank = 0 if self.waiting[0][2] is first else self.rank(first)
        return [place[2] for place in self.waiting[rank : rank + most]]

    def record_turn(self, late_before: float, *, chosen: bool) -> None:
        """Count a turn where there was a choice between late and timely ones, or one by cached prefix (`chosen`).

        Call before `remove`.
        """
        if self.waiting[0][0] < late_before <= self.waiting[-1][0] or (chosen and len(self.waiting) > 1):
            self.turns += 1
