"""A running pool as tests look at it: through the scheduler's own snapshots, and by what became of each request."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from core.addresses import parse_addresses
from core.clock import SystemClock
from scheduler.client import SchedulerClient
from scheduler.wire import PoolSnapshot, TenantView
from tests.support.invariants import money_is_sound, rows_by_request, settled_everything
from tests.support.load import Seen
from tests.support.stack import Stack
from tests.support.waiting import until
from workers.wire import ReplicaState, ReplicaStatus

REFUSALS = {"tenant_share": 429, "no_capacity": 503}
"""Code of a refusal -> its status."""


class PoolView:
    """The last snapshot that the scheduler has pushed."""

    def __init__(self, client: SchedulerClient) -> None:
        self._client = client

    @property
    def now(self) -> PoolSnapshot:
        """All of it."""
        return self._client.snapshot()

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return sum(queue.waiting for queue in self.now.queues)

    @property
    def in_flight(self) -> int:
        """Open placements."""
        return sum(queue.in_flight for queue in self.now.queues)

    def tenant(self, tenant_id: str) -> TenantView | None:
        """A tenant's part of the queue; None when it waits for nothing and runs nothing."""
        views = (tenant for queue in self.now.queues for tenant in queue.tenants)
        return next((view for view in views if view.tenant_id == tenant_id), None)

    def replica(self, replica_id: str) -> ReplicaStatus:
        """One replica."""
        [found] = [each for each in self.now.replicas if each.replica_id == replica_id]
        return found

    def in_state(self, state: ReplicaState) -> list[ReplicaStatus]:
        """Replicas in a state."""
        return [replica for replica in self.now.replicas if replica.state is state]


@asynccontextmanager
async def watching(stack: Stack) -> AsyncIterator[PoolView]:
    """Look at a running pool."""
    facts = stack.internals()
    client = SchedulerClient(
        parse_addresses(facts["schedulers"], "schedulers"),
        facts["internal_token"],
        name="test",
        clock=SystemClock(),
        rng=random.Random(1),
    )
    await client.start()
    try:
        await client.fresh_snapshot()
        yield PoolView(client)
    finally:
        await client.close()


def outcome(seen: Seen) -> str:
    """What became of a request: answered, refused or failed. Fails on anything else, and on two at once."""
    code = seen.problem.get("code")
    if not seen.problem:
        assert seen.status == 200, seen
        assert seen.finished, f"neither an end nor an error: {seen}"
        assert not seen.error, seen
        assert seen.tokens, f"an answer without content: {seen}"
        return "answered"
    if code in REFUSALS:
        assert not seen.tokens, f"refused after it had begun: {seen}"
        _is_honest(seen)
        return "refused"
    assert code == "engine_failed", seen.problem
    return "failed"


def _is_honest(seen: Seen) -> None:
    """A refusal says why, where it stood, how long it would take and when to come back."""
    details = seen.problem["details"]
    assert details["reason"]
    assert details["position"] >= 0
    assert details["warm_replicas"] > 0
    assert details["predicted_wait_s"] > 0
    assert details["retry_after_s"] >= 1
    if seen.status != 200:
        assert seen.status == REFUSALS[seen.problem["code"]]
        assert int(seen.headers["retry-after"]) >= details["retry_after_s"]


def outcomes(seen: Iterable[Seen]) -> Counter[str]:
    """How many of each."""
    return Counter(outcome(one) for one in seen)


def reasons(seen: Iterable[Seen]) -> Counter[str]:
    """Refusals by reason, as clients were told."""
    return Counter(str(one.problem["details"]["reason"]) for one in seen if outcome(one) == "refused")


async def rows_match(stack: Stack, tenant_id: str, seen: list[Seen]) -> dict[str, dict[str, Any]]:
    """One usage row for each admitted request and none else, the charge as the outcome says; money is sound."""
    await settled_everything(stack, tenant_id)
    wanted = {one.request_id for one in seen if outcome(one) != "refused"}

    async def all_there() -> bool:
        return wanted <= set(await rows_by_request(stack, tenant_id))

    await until(all_there, timeout_s=60)
    rows = await rows_by_request(stack, tenant_id)
    for one in seen:
        row = rows.get(one.request_id)
        if outcome(one) == "answered":
            assert row is not None
            assert row["output_tokens"] == one.tokens
            assert row["cost"] > 0
        elif row is not None:  # a refusal has one when its first replica died and there was no other for it
            assert row["outcome"] == "engine_failed"
            assert row["cost"] == 0
    assert len(rows) <= len(seen)
    await money_is_sound(stack, tenant_id)
    return rows


async def nothing_is_left(pool: PoolView) -> None:
    """No placement is open, nobody waits, and no engine that is awake runs or queues anything."""
    await until(lambda: not pool.in_flight and not pool.waiting)
    await until(
        lambda: all(one.running == one.waiting == 0 for one in pool.in_state(ReplicaState.READY)),
        timeout_s=30,
    )
