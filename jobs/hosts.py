"""Passes over the providers of hosts: one at a time for each provider on the whole platform."""

import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import text

from core.db import Database
from core.errors import InvalidRequest
from core.ids import uuid7
from core.settings import Settings, without_credentials
from workers.providers.digitalocean import DigitalOceanHosts, DropletOptions
from workers.providers.interface import HostProvider
from workers.providers.local import LocalProcesses
from workers.providers.reconciler import PassReport, Reconciler
from workers.providers.store import DatabaseIntents

log = logging.getLogger(__name__)

EVERY_S = 10.0
_LOCK = text("SELECT pg_try_advisory_xact_lock(hashtext('penstock_hosts'), hashtext(:provider))")
_WAITS = text("SET LOCAL idle_in_transaction_session_timeout = 0")
_LOCAL_FLEET = "local"
_OF_THIS_PROCESS = ("PENSTOCK_METRICS_PORT", "PENSTOCK_SUPERVISOR_PID", "PENSTOCK_SUPERVISOR_LOCK")
"""Variables of this role that an agent must not have: this process's port, supervisor and lock."""


async def reconcile_hosts(database: Database, settings: Settings) -> int:
    """One pass over each provider that is set up; returns the number of creates and destroys that were called."""
    calls = 0
    for make in configured(settings):
        provider = make()
        try:
            report = await run_pass(database, settings, provider)
        finally:
            await provider.close()
        if report.calls:
            log.info("%s: %d calls in a pass of %d acts", provider.name, report.calls, len(report.acts))
        calls += report.calls
    return calls


async def run_pass(database: Database, settings: Settings, provider: HostProvider) -> PassReport:
    """A pass over one provider under its lock; nothing when another process has it."""
    async with database.system() as lock:
        # The lock lasts as long as the transaction, which waits for the provider: its calls have time limits.
        await lock.execute(_WAITS)
        if not await lock.scalar(_LOCK, {"provider": provider.name}):
            return PassReport()
        reconciler = Reconciler(
            provider,
            DatabaseIntents(database),
            fleet=settings.fleet or _LOCAL_FLEET,
            new_id=uuid7,
            dry_run=settings.hosts_dry_run,
        )
        return await reconciler.run()


def configured(settings: Settings) -> list[Callable[[], HostProvider]]:
    """Makers of the providers that are set up. Raises InvalidRequest where a file cannot be read.

    A token alone sets nothing up, since it may be there to read invoices: DigitalOcean takes PENSTOCK_FLEET, too.
    """
    makers: list[Callable[[], HostProvider]] = []
    if settings.local_hosts:
        makers.append(lambda: _local(settings))
    if settings.fleet and (token := _token(settings)):
        makers.append(lambda: _digitalocean(settings, token))
    return makers


def _local(settings: Settings) -> HostProvider:
    agent = [sys.executable, "-m", "cli.main", "agent"]
    env = without_credentials(os.environ, *_OF_THIS_PROCESS)
    return LocalProcesses(settings.data_dir.resolve() / "hosts", agent, env, _now)


def _digitalocean(settings: Settings, token: str) -> HostProvider:
    # Imported here: the client takes seconds and some 60 MiB.
    from workers.providers.digitalocean_client import PydoApi

    user_data = settings.digitalocean_user_data
    options = DropletOptions(
        fleet=settings.fleet,
        image=settings.digitalocean_image,
        ssh_keys=tuple(key.strip() for key in settings.digitalocean_ssh_keys.split(",") if key.strip()),
        vpc_uuid=settings.digitalocean_vpc,
        user_data="" if user_data == Path() else _read(user_data, "PENSTOCK_DIGITALOCEAN_USER_DATA"),
    )
    return DigitalOceanHosts(PydoApi(token, api=settings.digitalocean_url), options, _now)


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
