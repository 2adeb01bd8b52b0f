"""Follows engines' token counters and stores them in PostgreSQL every few seconds, apart from placement.

It also finds **cuts**: instants at which an engine was idle. All requests placed before a cut have ended by then, and
none placed after it has begun, so the counters at a cut are exactly the usage of the former. An engine is idle while
it has no placements and no running or waiting requests, and two scrapes that began later show the same counters.
"""

import logging
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from scheduler import metrics
from scheduler.heartbeat_delay import HeartbeatDelays
from scheduler.listeners import Listener
from scheduler.store_loop import StoreLoop
from workers.engine_counters import CounterReport, Cut
from workers.wire import EndedEngine, EngineCounters, Heartbeat, ReplicaState, ReplicaStatus

STORE_EVERY_S = 3.0
"""Seconds between two writes."""
KEEPALIVE_S = 30.0
"""Seconds after which an engine with unchanged counters is written again, to show that it is alive."""
CUT_EVERY_S = 10.0
"""Shortest time between two cuts of an engine, in seconds."""
QUIET_SCRAPES = 2
"""Scrapes after which an idle engine is believed to be idle: the first may have begun before."""
CUT_AFTER_S = 0.5
"""Seconds from the first idle heartbeat to the cut: more than the clocks' errors, and before the later scrapes."""
FORGET_S = 300.0
"""Seconds without a heartbeat after which an engine is dropped."""
MAX_BOOTS = 10_000
"""Engine incarnations that are followed."""

log = logging.getLogger(__name__)
Record = Callable[[AsyncConnection, CounterReport], Awaitable[None]]
OpenPlacements = Callable[[str], int]
"""Returns the number of active placements on a replica."""


class _Boot:
    """One engine incarnation."""

    def __init__(self, status: ReplicaStatus, now: float) -> None:
        self.status = status
        self.last_seen_at = now
        self.scraped_at = now - status.scrape_age_s
        self.ended = False
        self.changed = True
        self.refused = False
        self.stored_at = 0.0
        self.idle_since: float | None = None
        self.idle_scrape = 0
        self.cut_at = now - CUT_EVERY_S
        self.cut_counters: EngineCounters | None = None
        self.cuts: list[tuple[float, EngineCounters]] = []

    def on_heartbeat(self, status: ReplicaStatus, open_placements: int, now: float) -> None:
        """Take the engine's part of a heartbeat."""
        before = self.status
        self.changed |= (before.counters, before.warmup_counters) != (status.counters, status.warmup_counters)
        if status.scrape != before.scrape:
            self.scraped_at = max(self.scraped_at, now - status.scrape_age_s)
        self.status, self.last_seen_at = status, now
        if status.state in (ReplicaState.FAILED, ReplicaState.STOPPED):
            self.end()
        self._look_for_a_cut(before.counters == status.counters, open_placements, now)

    def on_ended(self, ended: EndedEngine, now: float) -> None:
        """Take the last figures of the engine, which has ended."""
        if ended.status.counters.prompt_tokens >= self.status.counters.prompt_tokens:
            self.status = ended.status
        self.scraped_at = max(self.scraped_at, now - ended.scrape_age_s)
        self.last_seen_at = max(self.last_seen_at, now - ended.ended_age_s)
        self.changed = True
        self.end()

    def end(self) -> None:
        """Mark the counters as final, because the process has ended."""
        self.changed |= not self.ended
        self.ended = True

    def _look_for_a_cut(self, unchanged: bool, open_placements: int, now: float) -> None:
        status = self.status
        busy = open_placements + status.running + status.waiting > 0 or not unchanged
        if busy or self.ended or status.state is ReplicaState.LOADING:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since, self.idle_scrape = now, status.scrape
        elif (
            status.scrape >= self.idle_scrape + QUIET_SCRAPES
            and now >= self.idle_since + CUT_AFTER_S
            and now - self.cut_at >= CUT_EVERY_S
            and status.counters != self.cut_counters
        ):
            self.cuts.append((self.idle_since + CUT_AFTER_S, status.counters))
            self.cut_at, self.cut_counters, self.changed = now, status.counters, True

    def needs_keepalive(self, now: float) -> bool:
        """Whether the engine is alive and has not been written for KEEPALIVE_S."""
        return not self.ended and now - self.stored_at >= KEEPALIVE_S and self.last_seen_at > self.stored_at

    def report(self, now: float) -> CounterReport:
        """The report to store."""
        status = self.status
        return CounterReport(
            boot_id=status.boot_id,
            replica_id=status.replica_id,
            model=status.model,
            engine=status.engine,
            simulated=status.simulated,
            counters=status.counters,
            warmup=status.warmup_counters,
            scrape_age_s=now - self.scraped_at,
            seen_age_s=now - self.last_seen_at,
            ended=self.ended,
            cuts=tuple(
                Cut(now - at, counters.prompt_tokens, counters.generation_tokens)
                for at, counters in self.cuts
            ),
            version=status.version,
        )


class EngineCounterTracker:
    """All known engine incarnations. Pure: times are arguments, in monotonic seconds."""

    def __init__(self) -> None:
        self._boots: dict[str, _Boot] = {}
        self._of_replica: dict[str, str] = {}
        self._known_ends: dict[str, None] = {}
        """Incarnations whose end was reported in a list of ended engines, oldest first."""
        self._delays = HeartbeatDelays()

    def on_heartbeat(self, beat: Heartbeat, open_placements: OpenPlacements, now: float) -> None:
        """Take a heartbeat. External engines are left out: they also serve requests of others.

        Its figures are as old as it has waited: what has ended since may be missing in them.
        """
        now = self._delays.arrived(beat, now)
        for status in beat.replicas:
            if not status.boot_id or status.engine == "external":
                continue
            boot = self._boots.get(status.boot_id)
            if boot is None:
                if len(self._boots) >= MAX_BOOTS:
                    continue
                if previous := self._boots.get(self._of_replica.get(status.replica_id, "")):
                    previous.end()
                boot = self._boots[status.boot_id] = _Boot(status, now)
                self._of_replica[status.replica_id] = status.boot_id
            boot.on_heartbeat(status, open_placements(status.replica_id), now)
        for ended in beat.ended:
            self._on_ended(ended, now)

    def _on_ended(self, ended: EndedEngine, now: float) -> None:
        """Take the end of an engine, once: perhaps of one that began or worked on while no scheduler listened."""
        status = ended.status
        if not status.boot_id or status.engine == "external" or status.boot_id in self._known_ends:
            return
        boot = self._boots.get(status.boot_id)
        if boot is None:
            if len(self._boots) >= MAX_BOOTS:
                return
            boot = self._boots[status.boot_id] = _Boot(status, now - ended.ended_age_s)
            boot.scraped_at = now - ended.scrape_age_s
        boot.on_ended(ended, now)
        self._known_ends[status.boot_id] = None
        if len(self._known_ends) > MAX_BOOTS:
            del self._known_ends[next(iter(self._known_ends))]

    def due(self, now: float) -> list[_Boot]:
        """The incarnations that have changed or need a keepalive."""
        return [boot for boot in self._boots.values() if boot.changed or boot.needs_keepalive(now)]

    def stored(self, boots: list[_Boot], reports: list[CounterReport], now: float) -> None:
        """Note that reports are stored. Changes since then stay due."""
        for boot, report in zip(boots, reports, strict=True):
            del boot.cuts[: len(report.cuts)]
            fresh = (boot.status.counters, boot.status.warmup_counters, boot.ended)
            boot.changed = bool(boot.cuts) or fresh != (report.counters, report.warmup, report.ended)
            boot.stored_at = now
            boot.refused = False
        self._forget(now)

    def refused(self, boot: _Boot) -> bool:
        """Note that PostgreSQL rejected a report; returns whether it is the first time. The incarnation stays due
        without its cuts, with its next figures, until it is dropped."""
        is_new = not boot.refused
        boot.refused = True
        boot.cuts.clear()
        return is_new

    def _forget(self, now: float) -> None:
        self._delays.forget(now - FORGET_S)
        silent = (name for name, boot in self._boots.items() if now - boot.last_seen_at > FORGET_S)
        gone = [name for name in silent if self._boots[name].refused or not self._boots[name].changed]
        for name in gone:
            boot = self._boots.pop(name)
            if self._of_replica.get(boot.status.replica_id) == name:
                del self._of_replica[boot.status.replica_id]


class EngineCounterStore(StoreLoop, Listener):
    """Stores what an EngineCounterTracker collects. Counters are cumulative, so nothing is lost while PostgreSQL is
    away."""

    def __init__(
        self, database: Database, record: Record, now: Callable[[], float], *, every_s: float = STORE_EVERY_S
    ) -> None:
        """`record` is workers.engine_counters.record_counters, `now` a monotonic clock."""
        super().__init__(
            database, "engine counters", every_s=every_s, failures=metrics.ENGINE_COUNTERS_FAILURES
        )
        self.tracker = EngineCounterTracker()
        self._record, self._now = record, now

    def on_heartbeat(self, beat: Heartbeat, open_placements: OpenPlacements, at: float) -> None:
        """Take a heartbeat, without waiting."""
        self.tracker.on_heartbeat(beat, open_placements, at)

    async def write(self) -> None:
        """Store all due reports in one transaction; on failure they stay due. A report that PostgreSQL rejects, such
        as one with a number out of range, does not stop the others."""
        boots = sorted(self.tracker.due(self._now()), key=lambda boot: boot.status.boot_id)
        if not boots:
            return
        stored: list[tuple[_Boot, CounterReport]] = []
        async with self.database.system() as connection:
            for boot in boots:
                report = boot.report(self._now())
                if await self._stored(connection, boot, report):
                    stored.append((boot, report))
        self.tracker.stored([boot for boot, _ in stored], [report for _, report in stored], self._now())

    async def _stored(self, connection: AsyncConnection, boot: _Boot, report: CounterReport) -> bool:
        """Store one report in a savepoint. Returns False when PostgreSQL rejects it; raises DBAPIError when
        PostgreSQL is away."""
        try:
            async with connection.begin_nested():
                await self._record(connection, report)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            metrics.ENGINE_COUNTERS_REFUSED.inc()
            if self.tracker.refused(boot):
                log.error(
                    "the counters of %s (%s) are refused: %s", report.replica_id, report.boot_id, error.orig
                )
            return False
        return True
