"""One replica kept free for a request that fits nowhere and has been overtaken too often.

Without it a large prompt starves under steady small traffic, or all of its pool has to wait until it fits. One replica
drains for it while the others go on serving; it may still be placed on any of them should it fit there sooner.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.core.fair_queue import band_index
from scheduler.core.queue import Ticket
from scheduler.core.replica import Replica
from workers.wire import ReplicaState


@dataclass(frozen=True, slots=True)
class Reservation:
    """A replica that takes nobody else of the request's band, or of a lower one, until the request is placed."""

    ticket: Ticket
    replica_id: str
    band: int
    need: int
    """Tokens of KV cache that the request plans with."""

    def keeps_out(self, ticket: Ticket) -> bool:
        """Whether `ticket` must not go to the replica. Bands are strict: none makes room for a lower one."""
        return ticket is not self.ticket and band_index(ticket.request.tier) >= self.band

    def goes_before(self, ticket: Ticket) -> bool:
        """Whether `ticket` needs as much and therefore waits its turn: it would fit no better."""
        return need_of(ticket) >= self.need and self.keeps_out(ticket)


def need_of(ticket: Ticket) -> int:
    """Tokens of KV cache that a request plans with."""
    return ticket.request.prompt_tokens + ticket.request.output_tokens


def usable(replica: Replica, now: float, stale_s: float) -> bool:
    """Whether a replica takes requests: ready, and heard of within `stale_s` seconds."""
    return replica.state is ReplicaState.READY and now - replica.heard_at <= stale_s


def reserve(ticket: Ticket, replicas: Iterable[Replica], now: float, stale_s: float) -> Reservation | None:
    """Keep the replica that should fit `ticket` soonest: of those that can hold it, the one with most free KV cache.

    None where no usable replica that it has not failed on could ever hold it.
    """
    need, excluded = need_of(ticket), set(ticket.request.exclude)
    able = [
        replica
        for replica in replicas
        if usable(replica, now, stale_s)
        and replica.status.replica_id not in excluded
        and not 0 < replica.kv_capacity < need
    ]
    if not able:
        return None
    best = max(
        able,
        key=lambda each: (each.kv_capacity - each.kv_tokens, -each.running, each.status.replica_id),
    )
    return Reservation(ticket, best.status.replica_id, band_index(ticket.request.tier), need)
