"""The jobs: async functions that return a count of what they did. Each is idempotent and safe to run concurrently."""

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import count

import msgspec
from sqlalchemy import text

from admin.approval_limit import expire_all_waiting
from billing.close import periods
from billing.economics import engine_reconciliation as reconciliation
from billing.exports import schedule as exports_schedule
from billing.invoicing import correction_booking
from billing.ledger import audit_chain, checkpoints, credits, transfers
from billing.metering import reaper
from billing.notifications import alerts, delivery, end_user_alerts
from billing.statements import issue, signing, sla_credits
from billing.usage import archive, gpu_shares, rollups
from billing.usage.query import MAX_DAYS
from core.db import Database
from core.errors import Conflict
from core.settings import Settings
from jobs import audit_syslog, hosts, outbox, payments, retention, wal_archive
from scheduler import request_trace_store
from tenants import changes, denied_acts, logins
from workers.providers.store import prune_events

log = logging.getLogger(__name__)

Work = Callable[[Database, Settings], Awaitable[int]]

OVERDUE_S = 300.0
"""Shortest time without a success after which a job is overdue."""
LONG_S = 6 * 3600.0
"""Limit in seconds of jobs that read or write much: the whole chain, months of usage, exports."""


class Job(msgspec.Struct, frozen=True):
    """A job and its interval in seconds. The name identifies its Celery task."""

    name: str
    every_s: float
    work: Work
    limit_s: float = 1800.0
    """Seconds that a run may take. One that takes longer hangs, and its process is started again."""

    @property
    def overdue_s(self) -> float:
        """Seconds without a success after which the job is overdue, and the role unhealthy."""
        return max(OVERDUE_S, 3 * self.every_s)


AUDIT_BATCHES = 20
"""Batches of the audit log that a run seals at most."""


async def seal(database: Database, settings: Settings) -> int:
    """Add new ledger transfers and rows of the audit log to the chain, a batch per transaction.

    All transfers that wait; of the audit log at most AUDIT_BATCHES batches, so that a long one holds up no transfers.
    """
    total = 0
    for add, batch, most in (
        (transfers.seal, transfers.SEAL_BATCH, None),
        (audit_chain.seal, audit_chain.SEAL_BATCH, AUDIT_BATCHES),
    ):
        for _ in count() if most is None else range(most):
            async with database.system() as connection:
                sealed = await add(connection)
            total += sealed
            if sealed < batch:
                break
    return total


async def record_denied(database: Database, settings: Settings) -> int:
    """Move the refused acts of past minutes to the audit log, one batch per transaction."""
    total = 0
    moved = denied_acts.BATCH
    while moved == denied_acts.BATCH:
        async with database.system() as connection:
            moved = await denied_acts.move(connection)
        total += moved
    return total


async def verify_ledger(database: Database, settings: Settings) -> int:
    """Move the ledger's checkpoint over new links of the chain, and compare past days of usage with their rollup."""
    return await checkpoints.advance(database) + await rollups.verify_days(database)


async def verify_ledger_again(database: Database, settings: Settings) -> int:
    """Recompute the part of the hash chain that was recomputed longest ago."""
    return await checkpoints.verify_slice(database)


async def reap(database: Database, settings: Settings) -> int:
    """Expire the holds of dead processes."""
    gap_s = max(settings.hold_ttl_s / 2, 3 * reap_every_s(settings))
    async with database.system() as connection:
        expired = await reaper.reap(connection, settings.hold_ttl_s, gap_s=gap_s)
    if expired:
        log.warning("%d holds of dead processes expired", expired)
    return expired


async def roll_up(database: Database, settings: Settings) -> int:
    """Recompute the closed hours that settled batches changed."""
    return await rollups.roll_up(database)


async def share_gpu(database: Database, settings: Settings) -> int:
    """Allocate host costs again for days of open months whose seconds or prices have changed."""
    return await gpu_shares.reshare_changed_days(database, datetime.now(UTC))


async def share_gpu_again(database: Database, settings: Settings) -> int:
    """Allocate host costs again for every day that a report may cover, in case the catalog has changed."""
    return await gpu_shares.reshare_changed_days(database, datetime.now(UTC), MAX_DAYS)


async def expire_credits(database: Database, settings: Settings) -> int:
    """Expire credit lots that have reached their end."""
    return await credits.expire_all(database)


async def allocate_credits(database: Database, settings: Settings) -> int:
    """Allocate usage so far to credit lots."""
    return await credits.allocate_all(database)


async def make_partitions(database: Database, settings: Settings) -> int:
    """Create the partitions of holds and usage for the next months."""
    async with database.system() as connection:
        return await rollups.make_partitions(connection)


async def reconcile(database: Database, settings: Settings) -> int:
    """Compare engines' counters with usage rows."""
    return (await reconciliation.run(database)).compared


async def archive_usage(database: Database, settings: Settings) -> int:
    """Write closed months of usage to Parquet."""
    return await archive.archive_closed_months(database, archive.archive_dir(settings))


async def export(database: Database, settings: Settings) -> int:
    """Write the scheduled exports that are due."""
    return await exports_schedule.run_due(database, settings)


async def reconcile_again(database: Database, settings: Settings) -> int:
    """Compare the last two days again, which finds a row that was lost after its comparison."""
    async with database.read() as connection:
        now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    since = now - timedelta(days=2)
    return (await reconciliation.run(database, since=since)).compared


async def prune(database: Database, settings: Settings) -> int:
    """Delete old tenancy changes, sign-in failures whose window is over, and records of completed or past work."""
    async with database.system() as connection:
        pruned = await retention.prune_holds(connection)
    async with database.system() as connection:
        pruned += await changes.prune_changes(connection) + await logins.prune(connection)
        pruned += await retention.prune(connection)
    events = retention.BATCH
    while events == retention.BATCH:  # lists are asked for every few seconds: a day has more than a batch
        async with database.system() as connection:
            events = await prune_events(connection, retention.BATCH)
        pruned += events
    return pruned + await retention.forget_end_users(database)


async def prune_request_traces(database: Database, settings: Settings) -> int:
    """Delete recorded requests that are too old, and the oldest ones above the size limit."""
    async with database.system() as connection:
        return await request_trace_store.prune_traces(
            connection, settings.request_traces_keep_days, settings.request_traces_max_mb << 20
        )


async def check_alerts(database: Database, settings: Settings) -> int:
    """Raise alerts for budgets above a threshold and for low credit."""
    return await alerts.evaluate(database) + await end_user_alerts.send_digests(database)


async def deliver_notices(database: Database, settings: Settings) -> int:
    """Send notices by webhook and email."""
    senders = delivery.DeliveryConfig.from_settings(settings)
    return await delivery.deliver(database, senders)


async def credit_missed_levels(database: Database, settings: Settings) -> int:
    """Measure last month's service levels once its usage is final, and credit those that were missed."""
    return await sla_credits.credit_last_month(database)


async def issue_statements(database: Database, settings: Settings) -> int:
    """Sign the missing statements of closed months."""
    return await issue.issue_closed(database, lambda: signing.load_signer(settings))


async def dispatch_outbox(database: Database, settings: Settings) -> int:
    """Run the outbox topics that do not concern Stripe."""
    return await outbox.dispatch(database, {"billing.roll_up": lambda _: rollups.roll_up(database)})


async def make_invoices(database: Database, settings: Settings) -> int:
    """Create the invoices of the previous month once its usage is final."""
    try:
        return await periods.make_due_invoices(database)
    except Conflict as conflict:
        log.warning("invoices wait: %s", conflict.message)
        return 0


async def apply_corrections(database: Database, settings: Settings) -> int:
    """Continue approved corrections that a crash interrupted."""
    return await correction_booking.apply_all(database)


async def expire_approvals(database: Database, settings: Settings) -> int:
    """Expire acts that waited too long for another person."""
    return await expire_all_waiting(database)


def schedule(settings: Settings) -> tuple[Job, ...]:
    """All jobs with their intervals. The reaper runs several times within the TTL of a hold."""
    return (
        Job("penstock.seal", 2.0, seal),
        Job("penstock.record_denied", 30.0, record_denied),
        Job("penstock.send_audit", 10.0, audit_syslog.send_audit),
        Job("penstock.dispatch_outbox", 2.0, dispatch_outbox),
        Job("penstock.reap", reap_every_s(settings), reap),
        Job("penstock.roll_up", 60.0, roll_up),
        Job("penstock.verify_ledger", 60.0, verify_ledger, LONG_S),
        Job("penstock.verify_ledger_again", 300.0, verify_ledger_again, LONG_S),
        Job("penstock.share_gpu", 300.0, share_gpu),
        Job("penstock.share_gpu_again", 24 * 3600.0, share_gpu_again, LONG_S),
        Job("penstock.reconcile_hosts", hosts.EVERY_S, hosts.reconcile_hosts),
        Job("penstock.reconcile", 60.0, reconcile),
        Job("penstock.reconcile_again", 24 * 3600.0, reconcile_again, LONG_S),
        Job("penstock.check_alerts", 60.0, check_alerts),
        Job("penstock.credit_missed_levels", 3600.0, credit_missed_levels),
        Job("penstock.issue_statements", 10.0, issue_statements),
        Job("penstock.deliver_notices", 5.0, deliver_notices),
        Job("penstock.expire_credits", 60.0, expire_credits),
        Job("penstock.expire_approvals", 60.0, expire_approvals),
        Job("penstock.allocate_credits", 3600.0, allocate_credits),
        Job("penstock.make_invoices", 3600.0, make_invoices),
        Job("penstock.apply_corrections", 30.0, apply_corrections),
        Job("penstock.stripe_events", 2.0, payments.apply_events),
        Job("penstock.stripe_missed", 300.0, payments.find_missed),
        Job("penstock.stripe_send", 2.0, payments.send),
        Job("penstock.stripe_top_up", 30.0, payments.top_up),
        Job("penstock.stripe_meter", 600.0, payments.send_meter),
        Job("penstock.stripe_overdue", 600.0, payments.follow_overdue),
        Job("penstock.stripe_compare", 3600.0, payments.compare),
        Job("penstock.make_partitions", 6 * 3600.0, make_partitions),
        Job("penstock.archive_usage", 3600.0, archive_usage, LONG_S),
        Job("penstock.export", 300.0, export, LONG_S),
        Job("penstock.watch_wal_archive", 60.0, wal_archive.watch_wal_archive),
        Job("penstock.prune", 24 * 3600.0, prune, LONG_S),
        Job("penstock.prune_request_traces", 600.0, prune_request_traces),
    )


def reap_every_s(settings: Settings) -> float:
    """Seconds between two runs of the reaper: 1 to 5."""
    return max(1.0, min(5.0, settings.hold_ttl_s / 6))
