"""Requests that wait for a database function which locks their tenant's account: one queue per tenant, taken by turns.

A tenant is free until its account is found locked. From then on it is busy: only `take_busy` returns its requests, also
later ones, until `release` makes it free again. So no batch of free tenants waits for a busy one.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar
from uuid import UUID

ItemT = TypeVar("ItemT")


class TenantQueues(Generic[ItemT]):
    """Queues of items by tenant. Those for which `is_live` is false are dropped when they are taken."""

    def __init__(self, is_live: Callable[[ItemT], bool]) -> None:
        self._is_live = is_live
        self._free: dict[UUID, deque[ItemT]] = {}
        """Queues of free tenants, which are never empty, in the order of their turns."""
        self._busy: dict[UUID, deque[ItemT]] = {}
        """Queues of busy tenants, empty ones included."""
        self._size = 0

    def __len__(self) -> int:
        """Items of all tenants, dropped ones that were not reached yet included."""
        return self._size

    def waiting(self, tenant_id: UUID) -> int:
        """Items of this tenant, dropped ones that were not reached yet included."""
        queue = self._busy.get(tenant_id) or self._free.get(tenant_id)
        return 0 if queue is None else len(queue)

    @property
    def has_free(self) -> bool:
        """Whether an item of a free tenant waits."""
        return bool(self._free)

    def add(self, tenant_id: UUID, item: ItemT) -> None:
        """Append an item to its tenant's queue."""
        queue = self._busy.get(tenant_id)
        if queue is None:
            queue = self._free.setdefault(tenant_id, deque())
        queue.append(item)
        self._size += 1

    def take_free(self, most: int) -> list[ItemT]:
        """Remove up to `most` live items of free tenants, in equal parts while tenants have so many."""
        taken: list[ItemT] = []
        while self._free and len(taken) < most:
            share = max(1, (most - len(taken)) // len(self._free))
            for tenant_id in list(self._free)[: most - len(taken)]:
                queue = self._free.pop(tenant_id)
                taken += self._take(queue, min(share, most - len(taken)))
                if queue:
                    self._free[tenant_id] = queue
        return taken

    def take_busy(self, tenant_id: UUID, most: int) -> list[ItemT]:
        """Remove up to `most` live items of a busy tenant."""
        return self._take(self._busy[tenant_id], most)

    def put_back(self, tenant_id: UUID, items: Iterable[ItemT]) -> bool:
        """Return items of a tenant to the front of its queue and make it busy; whether it was free before."""
        queue = self._busy.get(tenant_id)
        was_free = queue is None
        if queue is None:
            queue = self._busy[tenant_id] = self._free.pop(tenant_id, deque())
        returned = list(items)
        queue.extendleft(reversed(returned))
        self._size += len(returned)
        return was_free

    def drop_dead(self) -> None:
        """Remove the items that are not live, wherever they stand."""
        for tenant_id, queue in self._busy.items():
            self._busy[tenant_id] = deque(filter(self._is_live, queue))
        live = {tenant_id: deque(filter(self._is_live, queue)) for tenant_id, queue in self._free.items()}
        self._free = {tenant_id: queue for tenant_id, queue in live.items() if queue}
        self._size = sum(map(len, (*self._busy.values(), *self._free.values())))

    def release(self, tenant_id: UUID) -> None:
        """Make a busy tenant free."""
        queue = self._busy.pop(tenant_id)
        if queue:
            self._free[tenant_id] = queue

    def _take(self, queue: deque[ItemT], most: int) -> list[ItemT]:
        taken: list[ItemT] = []
        while queue and len(taken) < most:
            item = queue.popleft()
            self._size -= 1
            if self._is_live(item):
                taken.append(item)
        return taken
