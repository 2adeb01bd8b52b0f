"""Stores the autoscaler's plan and its acts in PostgreSQL, and reads what providers have made of it.

A host whose destruction is stored may be destroyed at any moment. So nothing is started on it again until a plan
without it is stored and the host was still wanted afterwards.
"""

import time
from collections import deque
from collections.abc import Callable

import msgspec

from core.db import Database
from scheduler import metrics
from scheduler.provider_hosts import ProviderHosts
from scheduler.store_loop import StoreLoop
from workers.acting.plan import Mode, PoolAct, StoredPlan
from workers.acting.store import add_acts, read_now, read_plan, read_rules, write_plan
from workers.providers.store import read_desired, read_recent

STORE_EVERY_S = 2.0
"""Seconds between two rounds."""
MAX_ACTS = 1_000
"""Acts that are kept while PostgreSQL is away; later ones are dropped."""


class PlanStore(StoreLoop):
    """The latest plan until it is stored, acts until they are stored, and the hosts of providers as last read."""

    def __init__(
        self,
        database: Database,
        term: int,
        *,
        now: Callable[[], float] = time.monotonic,
        every_s: float = STORE_EVERY_S,
    ) -> None:
        """`term` is that of the lease; `now` returns monotonic seconds."""
        super().__init__(
            database, "plans of the autoscaler", every_s=every_s, failures=metrics.PLAN_STORE_FAILURES
        )
        self._term, self._now = term, now
        self._plan: tuple[StoredPlan, float] | None = None
        self._acts: deque[PoolAct] = deque()
        self._condemned: frozenset[str] = frozenset()
        self.stored = False
        """Whether a plan of this scheduler is stored: what an earlier one has stored holds no more."""
        self.hosts: ProviderHosts | None = None
        """None until they were read."""
        self.read_at: float | None = None
        """When they were, in monotonic seconds."""
        self.left: dict[str, str] | None = None
        """What the stored plan says of replicas that a notice has stopped; None until it was read."""
        self.mode = Mode.OFF
        """The platform's switch as last read."""

    async def _run(self) -> None:
        """Read at once: requests that an earlier scheduler held wait for hosts in creation."""
        await self.store()
        await super()._run()

    def put(self, plan: StoredPlan, at: float) -> None:
        """Take the plan of `at`, without waiting; it replaces one that is not stored yet.

        Its drained hosts are condemned from now on.
        """
        self._plan = (plan, at)
        self._condemned |= _drained(plan)

    def record(self, act: PoolAct) -> None:
        """Take an act for the timeline, without waiting."""
        if len(self._acts) < MAX_ACTS:
            self._acts.append(act)

    def is_condemned(self, host_id: str) -> bool:
        """Whether the host may be destroyed at any moment, so that nothing may be started on it."""
        known = self.hosts
        if known is None or (intent := known.intent_of(host_id)) is None:
            return False
        return not intent.wanted or intent.name in self._condemned

    async def write(self) -> None:
        """Store the plan and the acts, and read intents, in one transaction; on failure they are due again."""
        plan, acts, left = self._plan, list(self._acts), self.left
        async with self.database.system() as connection:
            if left is None:  # before another plan replaces it
                before = await read_plan(connection)
                left = {} if before is None else before.plan.left
            if plan is not None:
                stored = plan[0]
                if self.left is None:
                    stored = msgspec.structs.replace(stored, left=left | stored.left)
                await write_plan(connection, self._term, stored, max(0.0, self._now() - plan[1]))
            await add_acts(connection, acts)
            rules = await read_rules(connection)
            at = await read_now(connection)
            hosts = ProviderHosts(
                at,
                tuple(await read_recent(connection)),
                frozenset(row.group for row in await read_desired(connection) if row.is_persons(at)),
            )
        self.hosts, self.mode, self.read_at, self.left = hosts, rules.mode, self._now(), left
        for _ in acts:
            self._acts.popleft()
        if plan is not None:
            if self._plan is plan:
                self._plan = None
            self._condemned = _drained(plan[0]) | (_drained(self._plan[0]) if self._plan else frozenset())
            self.stored = True


def _drained(plan: StoredPlan) -> frozenset[str]:
    """The hosts that a plan allows to be destroyed."""
    return frozenset(row.host for row in plan.destroy if row.drained)
