"""The queue as a state machine: every ticket ends once, in order, at the latest at its deadline."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduler.core.queue import ModelQueue, QueueOutcome, Ticket
from tests.support.scheduling import request


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = ModelQueue()
        self.now = 0.0
        self.seq = 0
        self.all: dict[tuple[str, str], Ticket] = {}
        self.ended: set[tuple[str, str]] = set()

    @rule(
        client=st.sampled_from(["a", "b"]),
        tenant=st.sampled_from(["t1", "t2", "t3"]),
        age=st.floats(0, 30),
        wait=st.floats(0, 30),
    )
    def add(self, client: str, tenant: str, age: float, wait: float) -> None:
        self.seq += 1
        wanted = request(f"r{self.seq}", tenant)
        ticket = Ticket(client, wanted, self.now - age, self.now + wait, self.seq)
        self.queue.add(ticket)
        self.all[ticket.key] = ticket

    @rule(step=st.floats(0, 20))
    def time_passes(self, step: float) -> None:
        self.now += step
        before = [ticket.key for ticket in self.queue]
        for ticket, position in self.queue.expire(self.now):
            assert ticket.deadline_at <= self.now
            assert before[position - 1] == ticket.key
            self._end(ticket, QueueOutcome.DEADLINE)
        assert all(ticket.deadline_at > self.now for ticket in self.queue)

    @rule()
    def serve(self) -> None:
        head = self.queue.oldest
        if head is not None:
            assert self.queue.remove(head.key, QueueOutcome.PLACED) is head
            self._end(head, QueueOutcome.PLACED)

    @rule(pick=st.randoms(use_true_random=False))
    def cancel(self, pick) -> None:
        if self.all:
            key = pick.choice(sorted(self.all))
            ticket = self.queue.remove(key, QueueOutcome.CANCELLED)
            assert (ticket is None) == (key in self.ended)
            if ticket is not None:
                self._end(ticket, QueueOutcome.CANCELLED)

    @rule(client=st.sampled_from(["a", "b"]))
    def client_goes(self, client: str) -> None:
        for ticket in self.queue.remove_client(client):
            assert ticket.client == client
            self._end(ticket, QueueOutcome.CLIENT_GONE)
        assert all(ticket.client != client for ticket in self.queue)

    def _end(self, ticket: Ticket, outcome: QueueOutcome) -> None:
        assert ticket.key not in self.ended
        assert ticket.outcome is outcome
        self.ended.add(ticket.key)

    @invariant()
    def every_ticket_waits_or_has_ended(self) -> None:
        waiting = {ticket.key for ticket in self.queue}
        assert waiting | self.ended == set(self.all)
        assert not waiting & self.ended
        assert len(self.queue) == len(waiting)

    @invariant()
    def first_come_first_served(self) -> None:
        order = [(ticket.enqueued_at, ticket.seq) for ticket in self.queue]
        assert order == sorted(order)

    @invariant()
    def tenants_are_counted(self) -> None:
        tenants = [ticket.request.tenant_id for ticket in self.queue]
        assert set(self.queue.tenant_ids) == set(tenants)
        assert all(self.queue.waiting_of(tenant) == tenants.count(tenant) for tenant in ("t1", "t2", "t3"))


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
