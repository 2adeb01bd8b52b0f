"""Passes over the providers of hosts: one at a time for each provider on the whole platform."""

import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import msgspec
from prometheus_client import Gauge
from sqlalchemy import text

from admin.actor import system_actor
from admin.audit import record
from core.db import Database
from core.errors import InvalidRequest
from core.ids import uuid7
from core.money import usd_to_pico
from core.settings import Settings, without_credentials
from jobs.acting import act_on_plan, known_prices
from scheduler.authority import known_fingerprint
from workers.catalog import load_catalog
from workers.host_credentials import invite
from workers.join_token import JoinToken, new_secret
from workers.providers import digitalocean, local
from workers.providers.ceilings import Ceilings
from workers.providers.digitalocean import DigitalOceanHosts, DropletOptions
from workers.providers.intents import GiveUpImage, Retire
from workers.providers.interface import HostProvider
from workers.providers.local import LocalProcesses
from workers.providers.reconciler import PassReport, Reconciler, no_token
from workers.providers.store import DatabaseIntents, try_lock

log = logging.getLogger(__name__)

STOPPED = Gauge(
    "penstock_host_provider_stopped",
    "Whether the last pass over a provider of hosts could not see all of them, or changes nothing until a person acts.",
    ["provider"],
)
EVERY_S = 10.0
_WAITS = text("SET LOCAL idle_in_transaction_session_timeout = '15min'")
"""Longer than any pass: a process that stands still loses the lock then, and versions keep it from doing harm."""
_NAMES = text(
    "SELECT intent_id, name FROM host_intents WHERE intent_id = ANY(:ids) AND NOT wanted ORDER BY name"
)
TOKEN_VALID = timedelta(hours=2)
"""Longer than a host may take until its agent's first heartbeat (workers/providers/decide.py)."""
_LOCAL_FLEET = "local"
_OF_THIS_PROCESS = ("PENSTOCK_METRICS_PORT", "PENSTOCK_SUPERVISOR_PID", "PENSTOCK_SUPERVISOR_LOCK")
"""Variables of this role that an agent must not have: this process's port, supervisor and lock."""


async def reconcile_hosts(database: Database, settings: Settings) -> int:
    """Desire what the autoscaler's plan asks for, then one pass over each provider that is set up.

    Returns the number of creates and destroys that were called. An error with the plan or with one provider does not
    stop the passes of the others. It is raised after them.
    """
    calls = 0
    failures: list[Exception] = []
    makers = configured(settings)
    try:
        await act_on_plan(database, settings, frozenset(makers))
    except Exception as error:  # noqa: BLE001 - raised after the passes
        log.error("the autoscaler's plan: %s: %s", type(error).__name__, error)
        error.add_note("while desiring what the autoscaler's plan asks for")
        failures.append(error)
    for name, make in makers.items():
        try:
            report = await _pass(database, settings, make)
        except Exception as error:  # noqa: BLE001 - raised after the passes over the others
            log.error("%s: the pass failed: %s: %s", name, type(error).__name__, error)
            error.add_note(f"in the pass over {name}")
            failures.append(error)
            STOPPED.labels(name).set(1)
            continue
        if report is None or report.waited:
            continue
        STOPPED.labels(name).set(0 if report.complete else 1)
        if report.calls:
            log.info("%s: %d calls in a pass of %d acts", name, report.calls, len(report.acts))
        calls += report.calls
    if failures:
        raise failures[0]
    return calls


async def _pass(
    database: Database, settings: Settings, make: Callable[[], HostProvider]
) -> PassReport | None:
    provider = make()
    try:
        return await run_pass(database, settings, provider)
    finally:
        await provider.close()


async def run_pass(database: Database, settings: Settings, provider: HostProvider) -> PassReport | None:
    """A pass over one provider under its lock; None when another process has it."""
    async with database.system() as lock:
        # The lock lasts as long as the transaction, which waits for the provider: its calls have time limits.
        await lock.execute(_WAITS)
        if not await try_lock(lock, provider.name):
            return None
        reconciler = Reconciler(
            provider,
            DatabaseIntents(database),
            fleet=_LOCAL_FLEET if provider.name == local.NAME else settings.fleet,
            new_id=uuid7,
            known_prices=partial(known_prices, lock),
            token_for=partial(_join_token, database, settings)
            if provider.name == digitalocean.NAME and settings.schedulers_for_hosts
            else no_token,
            ceilings=Ceilings(settings.hosts_max, usd_to_pico(settings.hosts_max_usd_per_hour)),
            dry_run=settings.hosts_dry_run,
        )
        report = await reconciler.run()
        if not settings.hosts_dry_run:
            await _audit_replaced(database, report)
        return report


async def _audit_replaced(database: Database, report: PassReport) -> None:
    """Write down which hosts and images the pass gave up because they failed, and why."""
    async with database.system() as connection:
        for act in report.acts:
            if isinstance(act, GiveUpImage):
                await record(
                    connection,
                    system_actor("jobs"),
                    "hosts.give_up_image",
                    tenant_id=None,
                    object_kind="hosts",
                    object_id="/".join(msgspec.structs.astuple(act.group)),
                    reason=f"the first hosts of the image {act.image} failed",
                )
    reasons = {act.intent_id: act.why for act in report.acts if isinstance(act, Retire) and act.failed}
    if not reasons:
        return
    async with database.system() as connection:
        for row in await connection.execute(_NAMES, {"ids": list(reasons)}):
            await record(
                connection,
                system_actor("jobs"),
                "hosts.replace",
                tenant_id=None,
                object_kind="host",
                object_id=row.name,
                reason=reasons[row.intent_id],
            )


async def _join_token(database: Database, settings: Settings, name: str) -> str:
    """A token with which the host `name` joins at its first start.

    One of an earlier create, whose answer was lost, works as well: that host may be there and join first.
    """
    token = JoinToken(new_secret(), await known_fingerprint(database, settings))
    async with database.system() as connection:
        await invite(connection, name, token.hash, TOKEN_VALID, beside=True)
    return str(token)


def configured(settings: Settings) -> dict[str, Callable[[], HostProvider]]:
    """Makers of the providers that are set up, by name. They raise InvalidRequest where a file cannot be read.

    A token alone sets nothing up, since it may be there to read invoices: DigitalOcean takes PENSTOCK_FLEET, too.
    """
    makers: dict[str, Callable[[], HostProvider]] = {}
    if settings.local_hosts:
        makers[local.NAME] = lambda: _local(settings)
    if settings.fleet and _has_token(settings):
        makers[digitalocean.NAME] = lambda: _digitalocean(settings)
    return makers


def _local(settings: Settings) -> HostProvider:
    agent = [sys.executable, "-m", "cli.main", "agent"]
    env = without_credentials(os.environ, *_OF_THIS_PROCESS)
    return LocalProcesses(settings.data_dir.resolve() / "hosts", agent, env, _now)


def _digitalocean(settings: Settings) -> HostProvider:
    # Imported here: the client takes seconds and some 60 MiB.
    from workers.providers.digitalocean_client import PydoApi

    user_data = settings.digitalocean_user_data
    options = DropletOptions(
        fleet=settings.fleet,
        image=settings.digitalocean_image,
        ssh_keys=tuple(key.strip() for key in settings.digitalocean_ssh_keys.split(",") if key.strip()),
        vpc_uuid=settings.digitalocean_vpc,
        user_data="" if user_data == Path() else _read(user_data, "PENSTOCK_DIGITALOCEAN_USER_DATA"),
        schedulers=",".join(map(str, settings.schedulers_for_hosts)),
        kinds=frozenset(load_catalog().hosts),
    )
    return DigitalOceanHosts(PydoApi(_token(settings), api=settings.digitalocean_url), options, _now)


def _has_token(settings: Settings) -> bool:
    return settings.digitalocean_token_file != Path() or bool(settings.digitalocean_token.get_secret_value())


def _token(settings: Settings) -> str:
    if settings.digitalocean_token_file != Path():
        return _read(settings.digitalocean_token_file, "PENSTOCK_DIGITALOCEAN_TOKEN_FILE").strip()
    return settings.digitalocean_token.get_secret_value()


def _read(path: Path, setting: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise InvalidRequest(f"{setting}: {path} cannot be read: {error.strerror}") from None


def _now() -> datetime:
    return datetime.now(UTC)
