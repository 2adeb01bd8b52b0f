"""When each job succeeded last, in any process of the role, and which job is overdue.

Several processes share the jobs: one that never gets a job must not call it overdue. They tell each other through a
hash in Redis. Without Redis each knows its own successes only, and no job runs then in any case.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import cast

import redis
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

KEY = "penstock:jobs:succeeded"
"""Hash of job names and Unix seconds."""
READ_S = 10.0
"""Seconds between two readings of the others' successes."""


class Successes:
    """The last successes by job, as Unix seconds."""

    def __init__(
        self,
        limits: Mapping[str, float],
        redis_url: str,
        *,
        timeout_s: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`limits`: seconds without a success after which a job is overdue. `redis_url` may be empty: nothing is
        shared. `timeout_s` is Redis'. `now` returns Unix seconds."""
        self._limits = dict(limits)
        self._now = now
        self._began = now()
        self._at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._redis = (
            redis.Redis.from_url(redis_url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
            if redis_url
            else None
        )

    def add(self, job: str) -> None:
        """Note a success of `job` now, and learn of the others'. Never raises for a Redis that is away."""
        now = self._now()
        with self._lock:
            self._at[job] = now
            reads = now - self._read_at >= READ_S
            if reads:
                self._read_at = now
        if self._redis is None:
            return
        try:
            self._redis.hset(KEY, job, f"{now:.3f}")
            if reads:
                self._learn(cast(dict[bytes, bytes], self._redis.hgetall(KEY)))
        except RedisError as error:
            log.debug("the success of %s is not shared: %s", job, error)

    def _learn(self, shared: Mapping[bytes, bytes]) -> None:
        with self._lock:
            for name, at in shared.items():
                job = name.decode(errors="replace")
                if job in self._limits:
                    self._at[job] = max(self._at.get(job, 0.0), float(at))

    def overdue(self) -> list[str]:
        """The jobs without a success for longer than their limit, since the start of this process at the earliest."""
        now = self._now()
        with self._lock:
            last = {name: max(self._at.get(name, 0.0), self._began) for name in self._limits}
        return sorted(name for name, at in last.items() if now - at > self._limits[name])

    def close(self) -> None:
        """Disconnect."""
        if self._redis is not None:
            self._redis.close()
