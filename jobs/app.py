"""The Celery application: the broker, the tasks made of jobs/work.py, and when they are due.

The tasks are thin: they run the job's coroutine on one event loop per thread of the worker. Nothing is kept in results;
what a job did is in PostgreSQL. A message that waited longer than its interval is dropped: the next one does the work.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from celery import Celery
from prometheus_client import Counter, Gauge

from core.db import Database
from core.settings import Settings
from jobs.work import Job, schedule

RUNS = Counter("penstock_job_runs_total", "Runs of background jobs, by result.", ["job", "result"])
LAST_SUCCESS = Gauge("penstock_job_last_success_seconds", "Unix time of a job's last success.", ["job"])

REDIS_TIMEOUT_S = 2.0
"""Seconds until a command or a connection to Redis fails. A stop takes a few of these when Redis does not answer.

The longest command, the consumer's BRPOP, takes one second.
"""

NEVER = datetime.fromtimestamp(0, UTC)
"""The last run of each job as beat sees it at a start: all jobs are due at once. A new database needs partitions."""


class _Lane:
    """What one thread of the worker runs its jobs with: an event loop and a small pool, made at the first use."""

    def __init__(self, database_url: str) -> None:
        self.loop = asyncio.Runner()
        self.database = Database(database_url, pool_size=2)

    def close(self) -> None:
        """Close the pool and the loop; nothing runs on them any more."""
        self.loop.run(self.database.close())
        self.loop.close()


class Runner:
    """Runs coroutines of synchronous tasks, each thread on a loop of its own; no job twice at once in this process.

    A job that talks to Stripe for a minute must not keep the sealer or the reaper waiting: there is a thread for each.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._here = threading.local()
        self._lock = threading.Lock()
        self._lanes: list[_Lane] = []
        self._running: set[str] = set()
        self.last_success = time.monotonic()
        """When any job last succeeded, or the start."""

    def run(self, job: Job) -> int:
        """Run `job` to its end; raises what it raises. 0 when it runs already: that run does the work."""
        with self._lock:
            if job.name in self._running:
                RUNS.labels(job.name, "running").inc()
                return 0
            self._running.add(job.name)
        try:
            lane = self._lane()
            count = lane.loop.run(_awaited(job, lane.database, self._settings))
        except BaseException:
            RUNS.labels(job.name, "failed").inc()
            raise
        finally:
            with self._lock:
                self._running.discard(job.name)
        RUNS.labels(job.name, "ok").inc()
        LAST_SUCCESS.labels(job.name).set_to_current_time()
        self.last_success = time.monotonic()
        return count

    def _lane(self) -> _Lane:
        lane: _Lane | None = getattr(self._here, "lane", None)
        if lane is None:
            lane = self._here.lane = _Lane(self._settings.database_url)
            with self._lock:
                self._lanes.append(lane)
        return lane

    def close(self) -> None:
        """Close every pool and loop; the worker's threads have ended."""
        with self._lock:
            lanes, self._lanes = self._lanes, []
        for lane in lanes:
            lane.close()


async def _awaited(job: Job, database: Database, settings: Settings) -> int:
    return await job.work(database, settings)


def make_app(settings: Settings, runner: Runner) -> Celery:
    """The Celery application on `settings.redis_url`."""
    jobs = schedule(settings)
    app = Celery("penstock", broker=settings.redis_url, set_as_current=False)
    app.conf.update(
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "global_keyprefix": "penstock:jobs:",
            "visibility_timeout": 600,
            "socket_connect_timeout": REDIS_TIMEOUT_S,
            "socket_timeout": REDIS_TIMEOUT_S,
        },
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_default_queue="jobs",
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        enable_utc=True,
        beat_schedule={
            job.name: {
                "task": job.name,
                "schedule": job.every_s,
                "options": {"expires": job.every_s},
                "last_run_at": NEVER,
            }
            for job in jobs
        },
    )
    for job in jobs:
        app.task(_task(runner, job), name=job.name)
    return app


def _task(runner: Runner, job: Job) -> Callable[[], int]:
    def run() -> int:
        return runner.run(job)

    return run
