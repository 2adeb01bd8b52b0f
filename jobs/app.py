"""The Celery application: its broker, the schedule, and one task for each job of jobs/work.py.

A task runs the job's coroutine on the event loop and the connections of its job. Results are not stored; what a job did
is in PostgreSQL. A message that waited longer than its job's interval expires, because the next one does the same work.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from celery import Celery
from prometheus_client import Counter, Gauge

from core.db import BATCH, Database
from core.settings import Settings
from jobs.successes import Successes
from jobs.work import Job, schedule

RUNS = Counter("penstock_job_runs_total", "Runs of background jobs, by result.", ["job", "result"])
LAST_SUCCESS = Gauge("penstock_job_last_success_seconds", "Unix time of a job's last success.", ["job"])

REDIS_TIMEOUT_S = 2.0
"""Seconds until a command or a connection to Redis fails. A stop takes a few of these when Redis does not answer.

The longest command, the consumer's BRPOP, takes one second.
"""

NEVER_RUN = datetime.fromtimestamp(0, UTC)
"""Last run of each job at a start of beat, so that all are due at once. A new database needs partitions."""


STALLED_S = 600.0
"""Seconds without any success after which the process is started again: nothing reaches it, or all of it hangs."""

SELDOM_S = 60.0
"""Interval in seconds from which a job closes its connections after each run."""


class _JobContext:
    """The event loop and the connection pool of one job.

    A backend of PostgreSQL keeps plans and catalogue entries of each statement that it has run, some MiB for all jobs.
    With connections by worker thread, every backend would in time run every job.
    """

    def __init__(self, database_url: str, job: str) -> None:
        self.loop = asyncio.Runner()
        self.database = Database(database_url, name=job, pool_size=2, timeouts=BATCH)

    def close(self) -> None:
        """Close the pool and the loop. Nothing may run on them any more."""
        self.loop.run(self.database.close())
        self.loop.close()


class Runner:
    """Runs the coroutines of tasks, on one event loop per job; no job runs twice at once in this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._contexts: dict[str, _JobContext] = {}
        self._running: dict[str, float] = {}
        """The jobs that run, and until when they may, in monotonic seconds."""
        self._successes = Successes(
            {job.name: job.overdue_s for job in schedule(settings)},
            settings.redis_url,
            timeout_s=REDIS_TIMEOUT_S,
        )
        self.last_success = time.monotonic()
        """Monotonic instant of the last success of any job, or of the start."""

    def run(self, job: Job) -> int:
        """Run `job` and return its count; 0 when it runs already in this process. Raises what it raises."""
        with self._lock:
            if job.name in self._running:
                RUNS.labels(job.name, "running").inc()
                return 0
            self._running[job.name] = time.monotonic() + job.limit_s
        try:
            context = self._context(job)
            count = context.loop.run(_run_job(job, context.database, self._settings))
        except BaseException:
            RUNS.labels(job.name, "failed").inc()
            raise
        finally:
            with self._lock:
                self._running.pop(job.name, None)
        RUNS.labels(job.name, "ok").inc()
        LAST_SUCCESS.labels(job.name).set_to_current_time()
        self.last_success = time.monotonic()
        self._successes.add(job.name)
        return count

    def overdue(self) -> list[str]:
        """Jobs that have not succeeded for too long, in any process of the role, and do not run in this one."""
        return [name for name in self._successes.overdue() if name not in self._running]

    def hanging(self) -> list[str]:
        """Jobs that run for longer than they may; `jobs` when for STALLED_S none has succeeded."""
        now = time.monotonic()
        with self._lock:
            late = [name for name, deadline in self._running.items() if now > deadline]
        return sorted(late) + (["jobs"] if now - self.last_success > STALLED_S else [])

    def _context(self, job: Job) -> _JobContext:
        with self._lock:
            context = self._contexts.get(job.name)
            if context is None:
                context = self._contexts[job.name] = _JobContext(self._settings.database_url, job.name)
            return context

    def close(self) -> None:
        """Close all pools and loops. Call it after the worker's threads have ended."""
        with self._lock:
            contexts, self._contexts = self._contexts, {}
        for context in contexts.values():
            context.close()
        self._successes.close()


async def _run_job(job: Job, database: Database, settings: Settings) -> int:
    try:
        return await job.work(database, settings)
    finally:
        if job.every_s >= SELDOM_S:
            await database.close()


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
                "last_run_at": NEVER_RUN,
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
