"""One model's queue: first come first served, each with a deadline, each ending in exactly one outcome."""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.wire import PlaceRequest

Key = tuple[str, str]
"""Client and request id."""


class QueueOutcome(StrEnum):
    """How a queued request left the queue; every ticket gets exactly one."""

    PLACED = "placed"
    DEADLINE = "deadline"
    """It waited as long as it was willing to."""
    HOPELESS = "hopeless"
    """Waiting can no longer help: no replica will come."""
    CANCELLED = "cancelled"
    CLIENT_GONE = "client_gone"


@dataclass
class Ticket:
    """A request in the queue."""

    client: str
    request: PlaceRequest
    enqueued_at: float
    deadline_at: float
    seq: int
    outcome: QueueOutcome | None = field(default=None)

    @property
    def key(self) -> Key:
        """What names it in the queue."""
        return self.client, self.request.request_id


class ModelQueue:
    """FIFO by arrival. A request re-announced after a restart takes the place its age entitles it to."""

    def __init__(self) -> None:
        self._tickets: OrderedDict[Key, Ticket] = OrderedDict()
        self._deadlines: list[tuple[float, int, Key]] = []
        self._by_tenant: dict[str, int] = {}
        self._last = (float("-inf"), -1)

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets.values())

    def __contains__(self, key: object) -> bool:
        return key in self._tickets

    @property
    def oldest(self) -> Ticket | None:
        """The head of the queue."""
        return next(iter(self._tickets.values()), None)

    @property
    def tenant_ids(self) -> list[str]:
        """Tenants that wait."""
        return list(self._by_tenant)

    def waiting_of(self, tenant_id: str) -> int:
        """Requests of one tenant that wait."""
        return self._by_tenant.get(tenant_id, 0)

    def add(self, ticket: Ticket) -> None:
        """Queue a ticket at the place of its arrival time. Raises ValueError when its key already waits."""
        if ticket.key in self._tickets:
            raise ValueError(f"request {ticket.request.request_id} already waits")
        self._tickets[ticket.key] = ticket
        order = (ticket.enqueued_at, ticket.seq)
        if order < self._last and len(self._tickets) > 1:
            by_arrival = sorted(self._tickets.values(), key=lambda each: (each.enqueued_at, each.seq))
            self._tickets = OrderedDict((each.key, each) for each in by_arrival)
        else:
            self._last = order
        heapq.heappush(self._deadlines, (ticket.deadline_at, ticket.seq, ticket.key))
        tenant_id = ticket.request.tenant_id
        self._by_tenant[tenant_id] = self._by_tenant.get(tenant_id, 0) + 1

    def remove(self, key: Key, outcome: QueueOutcome) -> Ticket | None:
        """Take a ticket out with its outcome; None when it does not wait (any more)."""
        ticket = self._tickets.pop(key, None)
        if ticket is None:
            return None
        ticket.outcome = outcome
        tenant_id = ticket.request.tenant_id
        left = self._by_tenant[tenant_id] - 1
        if left:
            self._by_tenant[tenant_id] = left
        else:
            del self._by_tenant[tenant_id]
        if len(self._deadlines) > 64 and len(self._deadlines) > 2 * len(self._tickets):
            self._deadlines = [(each.deadline_at, each.seq, each.key) for each in self._tickets.values()]
            heapq.heapify(self._deadlines)
        return ticket

    def remove_client(self, client: str) -> list[Ticket]:
        """Take out everything of a client whose connection is gone."""
        keys = [key for key in self._tickets if key[0] == client]
        removed = [self.remove(key, QueueOutcome.CLIENT_GONE) for key in keys]
        return [ticket for ticket in removed if ticket is not None]

    def expire(self, now: float) -> list[tuple[Ticket, int]]:
        """Take out every ticket whose deadline has passed, each with the position (1 = next) it had reached."""
        due: list[Key] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, seq, key = heapq.heappop(self._deadlines)
            ticket = self._tickets.get(key)
            if ticket is not None and ticket.seq == seq:
                due.append(key)
        if not due:
            return []
        wanted = set(due)
        positions = {key: place for place, key in enumerate(self._tickets, 1) if key in wanted}
        expired = [(self.remove(key, QueueOutcome.DEADLINE), positions[key]) for key in due]
        return [(ticket, position) for ticket, position in expired if ticket is not None]
