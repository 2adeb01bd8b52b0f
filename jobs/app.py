"""The Celery application: the broker, the tasks made of jobs/work.py, and when they are due.

The tasks are thin: they run the job's coroutine on one event loop per worker process. Nothing is kept in results;
what a job did is in PostgreSQL. A message that waited longer than its interval is dropped: the next one does the work.
"""

import asyncio
import time
from collections.abc import Callable

from celery import Celery
from prometheus_client import Counter, Gauge

from core.db import Database
from core.settings import Settings
from jobs.work import Job, schedule

RUNS = Counter("penstock_job_runs_total", "Runs of background jobs, by result.", ["job", "result"])
LAST_SUCCESS = Gauge("penstock_job_last_success_seconds", "Unix time of a job's last success.", ["job"])


class Runner:
    """Runs coroutines of synchronous tasks on one loop with one database pool, made at the first use."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runner: asyncio.Runner | None = None
        self._database: Database | None = None
        self.last_success = time.monotonic()
        """When any job last succeeded, or the start."""

    def run(self, job: Job) -> int:
        """Run `job` to its end; raises what it raises."""
        if self._runner is None or self._database is None:
            self._runner = asyncio.Runner()
            self._database = Database(self._settings.database_url, pool_size=2)
        try:
            count = self._runner.run(_awaited(job, self._database, self._settings))
        except BaseException:
            RUNS.labels(job.name, "failed").inc()
            raise
        RUNS.labels(job.name, "ok").inc()
        LAST_SUCCESS.labels(job.name).set_to_current_time()
        self.last_success = time.monotonic()
        return count

    def close(self) -> None:
        """Close the pool and the loop."""
        if self._runner is not None and self._database is not None:
            self._runner.run(self._database.close())
            self._runner.close()
            self._runner = None


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
        broker_transport_options={"global_keyprefix": "penstock:jobs:", "visibility_timeout": 600},
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_default_queue="jobs",
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        enable_utc=True,
        beat_schedule={
            job.name: {"task": job.name, "schedule": job.every_s, "options": {"expires": job.every_s}}
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
