"""Rollouts and promoted versions as PostgreSQL has them, and what the scheduler decides of them until it is stored."""

from collections.abc import Mapping

from core.db import Database
from scheduler import metrics
from scheduler.core.image_rollout import ImageHosts
from scheduler.image_hosts import read_image_hosts
from scheduler.store_loop import StoreLoop
from workers.engine_spec import EngineSpec
from workers.rollouts import Rollout, RolloutUpdate, read_deployments, read_rollouts, write_updates

STORE_EVERY_S = 1.0
"""Seconds between two rounds, which read what admins have done."""


class RolloutStore(StoreLoop):
    """The active rollouts by model. An update holds here at once, and in PostgreSQL unless an admin was faster."""

    def __init__(self, database: Database, term: int, *, every_s: float = STORE_EVERY_S) -> None:
        """`term` is that of the lease."""
        super().__init__(database, "rollouts", every_s=every_s, failures=metrics.ROLLOUT_STORE_FAILURES)
        self._term = term
        self._updates: dict[str, RolloutUpdate] = {}
        self.active: Mapping[str, Rollout] = {}
        """By model."""
        self.deployed: Mapping[str, EngineSpec] = {}
        """By model, of those whose last rollout has ended."""
        self.image_hosts: Mapping[str, ImageHosts] = {}
        """By model: the hosts of the active rollouts of an image."""

    def put(self, rollout: Rollout, update: RolloutUpdate) -> None:
        """Take a decision, without waiting. One that changes the state is not replaced before it is stored."""
        waiting = self._updates.get(rollout.model)
        if waiting is None or waiting.was is waiting.state:
            self._updates[rollout.model] = update

    def is_deciding(self, model: str) -> bool:
        """Whether a change of state is not stored yet."""
        waiting = self._updates.get(model)
        return waiting is not None and waiting.was is not waiting.state

    async def write(self) -> None:
        """Store the updates and read what holds now, in one transaction."""
        updates = dict(self._updates)
        async with self.database.system() as connection:
            await write_updates(connection, list(updates.values()), self._term)
            active = await read_rollouts(connection, active=True)
            deployed = await read_deployments(connection)
            image_hosts = await read_image_hosts(connection, active)
        for model, update in updates.items():
            if self._updates.get(model) is update:
                del self._updates[model]
        self.active = {each.model: each for each in active}
        self.deployed, self.image_hosts = deployed, image_hosts
