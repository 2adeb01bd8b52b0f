"""A queued request, and a flow: one tenant's queued requests of one band in order of arrival."""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.core.where import Where
from scheduler.wire import PlaceRequest

RequestKey = tuple[str, str]
"""Client name and request id."""


class QueueOutcome(StrEnum):
    """How a queued request left the queue. Every queued request gets exactly one outcome."""

    PLACED = "placed"
    DEADLINE = "deadline"
    """The request reached its deadline."""
    HOPELESS = "hopeless"
    """No replica will take the request, or none in time."""
    CANCELLED = "cancelled"
    CLIENT_GONE = "client_gone"


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """A request in the queue. Times are monotonic seconds."""

    client: str
    request: PlaceRequest
    enqueued_at: float
    deadline_at: float
    seq: int
    admitted: bool = False
    """An earlier scheduler admitted the request: it waits until its deadline, whatever wait is predicted."""
    work: float = 0.0
    """Weighted tokens that the request asks for, as known on arrival (see `QueueRules.work`)."""
    where: Where = None
    """The places of the model's replicas that it may use, as known now."""
    outcome: QueueOutcome | None = field(default=None)
    predicted_wait_s: float | None = None
    """The wait that admission predicted; None when there was nothing to predict from."""
    predicted_at: float = 0.0
    residual: float = 0.0
    """The correction that the prediction contains: a logarithm of observed over uncorrected wait."""
    late: bool = False
    """The prediction was made for a late request."""
    passed: int = 0
    """Requests that were placed before it in its turn, because it fitted nowhere."""
    passed_work: float = 0.0
    """The work of these requests."""
    hit_tokens: int = 0
    """Prompt tokens cached on some replica, as looked up at `hit_at`."""
    hit_at: float = -1e9
    overtaken: int = 0
    """Later requests of its tenant that left before it, of those that the reordering by cached prefix may choose."""

    @property
    def key(self) -> RequestKey:
        """The key of the request in the queue."""
        return self.client, self.request.request_id

    @property
    def need(self) -> int:
        """Tokens of KV cache that the request needs: prompt and estimated answer."""
        return self.request.prompt_tokens + self.request.output_tokens

    @property
    def sort_key(self) -> "SortKey":
        """The position of the request in its flow."""
        return self.enqueued_at, self.seq, self


SortKey = tuple[float, int, QueuedRequest]
"""Arrival, sequence number, request: sorts by age. A request announced again after a restart keeps its arrival time."""


class Flow:
    """One tenant's queued requests of one band, oldest first, with the tenant's counter and its running requests.

    The requests are in a sorted list. A position is found by bisection, and to move a few thousand pointers takes
    about a microsecond.
    """

    __slots__ = (
        "charged_here",
        "counter",
        "kv_tokens",
        "name",
        "parts",
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
        """Weighted tokens of the queued requests."""
        self.parts: dict[Where, list[SortKey]] = {}
        """The queued requests by where they may run, oldest first."""
        self.running = 0
        self.kv_tokens = 0
        """Tokens of KV cache reserved for the running requests."""
        self.turns = 0
        """Picks made while several requests were queued."""

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return (place[2] for place in self.waiting)

    def add(self, queued: QueuedRequest) -> None:
        """Insert a request at the position of its age."""
        bisect.insort(self.waiting, queued.sort_key)
        bisect.insort(self.parts.setdefault(queued.where, []), queued.sort_key)
        self.work += queued.work

    def remove(self, queued: QueuedRequest) -> None:
        """Remove a request of this flow."""
        del self.waiting[self.rank(queued)]
        part = self.parts[queued.where]
        del part[bisect.bisect_left(part, queued.sort_key)]
        if not part:
            del self.parts[queued.where]
        self.work = self.work - queued.work if self.waiting else 0.0

    def move(self, queued: QueuedRequest, where: Where) -> None:
        """Change where a request of this flow may run: the model's replicas are in other places now."""
        self.remove(queued)
        queued.where = where
        self.add(queued)

    def rank(self, queued: QueuedRequest) -> int:
        """The number of requests that are older than `queued`."""
        return bisect.bisect_left(self.waiting, queued.sort_key)

    def late_count(self, late_before: float) -> int:
        """The number of requests that arrived before `late_before`."""
        return bisect.bisect_left(self.waiting, (late_before,))

    def next_request(self, late_before: float, oldest_every: int, growing: bool) -> QueuedRequest:
        """The oldest request. In a `growing` queue it is the oldest that can still be in time, and the oldest of all
        at every `oldest_every`-th turn.

        Requests that arrived before `late_before` are late. Raises IndexError when the flow is empty.
        """
        oldest = self.waiting[0]
        if not growing or self.is_turn_of_oldest(oldest_every) or oldest[0] >= late_before:
            return oldest[2]
        timely = self.late_count(late_before)
        return self.waiting[timely][2] if timely < len(self.waiting) else oldest[2]

    def is_turn_of_oldest(self, oldest_every: int) -> bool:
        """Whether the next turn in a growing queue is the oldest request's: every `oldest_every`-th."""
        return (self.turns + 1) % max(1, oldest_every) == 0

    def reorder_candidates(self, first: QueuedRequest, limit: int, max_overtaken: int) -> list[QueuedRequest]:
        """The request whose turn it is and the requests right behind it that may go in its place, at most `limit`
        together.

        None behind a request that was overtaken `max_overtaken` times may go, so that no request starves.
        """
        rank = 0 if self.waiting[0][2] is first else self.rank(first)
        candidates = []
        for _, _, queued in self.waiting[rank : rank + limit]:
            candidates.append(queued)
            if queued.overtaken >= max_overtaken:
                break
        return candidates

    def record_turn(self, queued: QueuedRequest, late_before: float, reorder_window: int) -> None:
        """Count the turn of `queued` and its overtaking of the requests right before it. Call it before `remove`."""
        if len(self.waiting) > 1:
            self.turns += 1
        if self.waiting[0][2] is not queued:
            rank = self.rank(queued)
            for place in self.waiting[max(0, rank - reorder_window + 1) : rank]:
                place[2].overtaken += 1
