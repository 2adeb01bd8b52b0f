"""One band of one model's queue: tenants in the order of their counters (Virtual Token Counter).

Sheng et al., Fairness in Serving Large Language Models, OSDI'24: whoever has the smallest counter of weighted tokens
goes next; a tenant that begins to wait is lifted to the smallest counter among those that wait, or, when nobody
waits, to that of the tenant who left last, so that idleness earns no credit. Among tenants within Q of the smallest
counter the longest cached prefix goes first (DLPM, arXiv 2501.14312), and so it does inside the tenant whose turn it
is, which costs no other tenant anything.
"""

import bisect
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from itertools import islice

from scheduler.core.queue import Line, Ticket
from scheduler.core.rules import QueueRules

Hits = Callable[[Ticket], int]
"""How many prompt tokens of a ticket are cached somewhere."""
MAX_PASSED = 16
"""When so many at the head of a line are passed over, its others wait with them: the next line is looked at."""


class Band:
    """The lines of one band. Everything here costs at most a few microseconds, whatever the number of tenants."""

    def __init__(self, rules: QueueRules) -> None:
        self.rules = rules
        self.lines: dict[str, Line] = {}
        self.order: list[tuple[float, str]] = []
        """Counter and name of every line in which somebody waits, smallest first."""
        self.waiting = 0
        self.work = 0.0
        self.weight = 0.0
        """Sum of the weights of those lines."""
        self.running = 0
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._last: Line | None = None
        self._base = 0.0
        """What newcomers start with until somebody has waited here."""

    def __iter__(self) -> Iterator[Line]:
        """Lines in which somebody waits, smallest counter first."""
        return (self.lines[name] for _, name in self.order)

    @property
    def floor(self) -> float:
        """The counter that a newcomer is lifted to."""
        if self.order:
            return self.order[0][0]
        return max(self._base, self._last.counter) if self._last is not None else self._base

    @property
    def active(self) -> int:
        """Tenants that wait or run."""
        last = self._last
        resting = last is not None and not last.waiting and not last.running
        return len(self.lines) - len(self._idle) - resting

    # Standing in line

    def add(self, ticket: Ticket) -> None:
        """Let a ticket wait in its tenant's line."""
        line = self.line(ticket.request.tenant_id)
        if line.waiting:
            line.add(ticket)
        else:
            line.counter = max(line.counter, self.floor)
            line.add(ticket)
            line.weight = ticket.request.weight
            self.weight += line.weight
            self._idle.pop(line.name, None)
            bisect.insort(self.order, (line.counter, line.name))
        self.waiting += 1
        self.work += ticket.work

    def remove(self, ticket: Ticket) -> None:
        """Take a waiting ticket out."""
        line = self.lines[self.rules.line_of(ticket.request.tenant_id)]
        line.remove(ticket)
        self.waiting -= 1
        self.work = self.work - ticket.work if self.waiting else 0.0
        if not line.waiting:
            del self.order[bisect.bisect_left(self.order, (line.counter, line.name))]
            self.weight = self.weight - line.weight if self.order else 0.0
            previous, self._last = self._last, line
            self._retire(line)
            if previous is not None:
                self._retire(previous)

    def oldest_at(self) -> float | None:
        """When the one that waits longest arrived; looks at every tenant once."""
        return min((line.waiting[0][0] for line in self), default=None)

    # Who goes next

    def pick(
        self, late_before: float, kv_tokens: int, hits: Hits, passed: Container[Ticket], strict: bool
    ) -> Ticket | None:
        """Whose turn it is, leaving out those that were `passed` over; None when there is nobody (else).

        `kv_tokens` is the pool's KV cache, for the cap on what one tenant may hold while others wait. When `strict`,
        only tenants within Q of the smallest counter are considered. The tenant whose turn it is offers others of
        its requests too where its next is mostly uncached.
        """
        if not self.order:
            return None
        rules = self.rules
        limit = self.order[0][0] + rules.slack if strict else None
        best: Ticket | None = None
        capped: Ticket | None = None
        best_hit, looked = -1, 0
        for counter, name in self.order:
            if limit is not None and (counter > limit or looked >= rules.heads):
                break
            line = self.lines[name]
            ticket = _next(line, late_before, rules.late_every, passed)
            if ticket is None:
                continue
            if self._over_cap(line, kv_tokens):
                capped = capped or ticket
                continue
            if rules.look_ahead <= 1 and (rules.slack <= 0 or len(self.order) == 1):
                return ticket
            if limit is None:
                limit = counter + rules.slack
            looked += 1
            hit = hits(ticket)
            if hit > best_hit:
                best, best_hit = ticket, hit
            if looked > 1 or 2 * hit >= ticket.request.prompt_tokens:
                continue
            for other in line.near(ticket, rules.late_every, rules.look_ahead):
                if other not in passed and (hit := hits(other)) > best_hit:
                    best, best_hit = other, hit
        return best or capped

    def took(self, ticket: Ticket, late_before: float) -> None:
        """The pick is about to be removed because it was placed."""
        line = self.lines[self.rules.line_of(ticket.request.tenant_id)]
        line.took(late_before, chosen=self.rules.look_ahead > 1)

    def _over_cap(self, line: Line, kv_tokens: int) -> bool:
        """Whether a tenant holds so much KV cache that others come first; never while it waits alone."""
        if len(self.order) == 1 or kv_tokens <= 0:
            return False
        share = max(self.rules.kv_share, line.weight / self.weight)
        return line.kv_tokens > share * kv_tokens

    # Counters

    def line(self, tenant_id: str) -> Line:
        """A tenant's line; a newcomer's begins at the floor."""
        name = self.rules.line_of(tenant_id)
        line = self.lines.get(name)
        if line is None:
            line = self.lines[name] = Line(name, self.floor)
        return line

    def charge(self, line: Line, amount: float) -> None:
        """Add to a tenant's counter (or take back, when negative)."""
        line.here += amount
        self._move(line, line.counter + amount)

    def started(self, line: Line, kv_tokens: int) -> None:
        """One more of its requests runs, planning with `kv_tokens` of KV cache."""
        self.running += 1
        line.running += 1
        line.kv_tokens += kv_tokens
        self._idle.pop(line.name, None)

    def grew(self, line: Line, kv_tokens: int) -> None:
        """One of its running requests plans with so much more."""
        line.kv_tokens += kv_tokens

    def ended(self, line: Line, kv_tokens: int) -> None:
        """One of them is over; the line is forgotten when nothing depends on it any more."""
        self.running -= 1
        line.running -= 1
        line.kv_tokens -= kv_tokens
        self._retire(line)

    def adopt(self, tenant_id: str, service: float) -> None:
        """An earlier scheduler had counted `service`; what was charged here since comes on top. The largest wins."""
        line = self.line(tenant_id)
        if service > line.counter - line.here:
            self._move(line, service + line.here)
        self._retire(line)

    def adopt_floor(self, service: float) -> None:
        """Newcomers would have begun at `service` with an earlier scheduler: whoever is new here does so too."""
        if service > self._base:
            self._base = service
            for name in list(self.lines):
                line = self.lines[name]
                if service > line.counter - line.here:
                    self._move(line, service + line.here)

    def _move(self, line: Line, counter: float) -> None:
        if line.waiting and counter != line.counter:
            del self.order[bisect.bisect_left(self.order, (line.counter, line.name))]
            bisect.insort(self.order, (counter, line.name))
        line.counter = counter

    def _retire(self, line: Line) -> None:
        """Forget a tenant that neither waits nor runs, once a newcomer would start where it stands; bounded anyway."""
        if line.waiting or line.running or line is self._last:
            return
        if line.counter <= self.floor:
            self.lines.pop(line.name, None)
            self._idle.pop(line.name, None)
            return
        self._idle[line.name] = None
        self._idle.move_to_end(line.name)
        if len(self._idle) > self.rules.max_idle:
            self.lines.pop(self._idle.popitem(last=False)[0], None)


def _next(line: Line, late_before: float, late_every: int, passed: Container[Ticket]) -> Ticket | None:
    """Who of a line goes next, were those that were passed over not there."""
    ticket = line.next(late_before, late_every)
    if ticket not in passed:
        return ticket
    return next((other for other in islice(line, MAX_PASSED) if other not in passed), None)
