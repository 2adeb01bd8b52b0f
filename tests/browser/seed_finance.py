"""What finance's pages show in tests: two past months and the present one, hosts with GPUs, payments, an engine that
counted tokens that no row explains. Told on a database clock that the seed moves; it ends on the real time."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import text

from admin import adjustments as admin_adjustments
from admin import credits as admin_credits
from admin import economics as admin_economics
from admin import keys as admin_keys
from admin import models as admin_models
from admin import prices as admin_prices
from admin import projects as admin_projects
from admin import reconcile as admin_reconcile
from admin import tenants as admin_tenants
from admin import users as admin_users
from billing.economics import engine_reconciliation
from billing.usage import rollups
from core.db import Database
from tests.browser.seed import ADMIN, FINANCE, ME, PASSWORD, PEPPER, Customer
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.payments.support import buy, gateway_to
from tests.integration.billing.support import Customer as Payer
from tests.support.approving import SECOND as APPROVER
from tests.support.stripe_sim import FakeStripe
from tests.support.virtual_time import VirtualClock
from workers.engine_counters import CounterReport, record_counters
from workers.wire import EngineCounters

SECOND = "controller@penstock.local"
"""The other person of finance, who approves."""
MODEL = "llama-3.3-70b"
HOST_KIND = "gpu-h100x8-640gb"
BOOT = "boot-of-the-odd-engine"


def months(now: datetime) -> list[datetime]:
    """Noon of the 10th of the month before the last, of the last month, and of this one's 1st."""
    this = now.replace(day=1, hour=12, minute=0, second=0, microsecond=0)
    last = (this - timedelta(days=1)).replace(day=10)
    before = (last.replace(day=1) - timedelta(days=1)).replace(day=10)
    return [before, last, this]


def finance_seed(fake: FakeStripe) -> Callable[[Database, Path], Awaitable[dict[str, Customer]]]:
    """The seed over a local Stripe."""

    async def fill(database: Database, spool: Path) -> dict[str, Customer]:
        del spool
        now = datetime.now(UTC)
        first, last, _ = months(now)
        clock = VirtualClock(database.url)
        await clock.install()
        await clock.set(first - timedelta(days=5))
        platform = Platform(database, clock, first)
        customers = await _people(database)
        await _hosts(database, [first, last, now])
        for at, times in ((first, 4), (last, 7)):
            await clock.set(at)
            await _usage(platform, customers, times)
        await clock.set(now)
        await _usage(platform, customers, 5)
        await rollups.roll_up(database)
        await _payments(database, fake, customers)
        await _changes(database, customers)
        await _engines(database)
        return customers

    return fill


async def _people(database: Database) -> dict[str, Customer]:
    for email, role in ((ADMIN, "platform_admin"), (FINANCE, "finance"), (SECOND, "finance")):
        await admin_users.create_user(database, ME, email=email, password=PASSWORD, role=role)
    await admin_models.add_model(database, ME, name=MODEL)
    await admin_prices.set_price(
        database, ME, model=MODEL, input="1", cached_input="0.1", output="10", reasoning="10"
    )
    found = {}
    for name, mode in (("Northwind Robotics", "prepaid"), ("Lumen Health", "postpaid")):
        tenant = await admin_tenants.create_tenant(database, ME, name=name, billing_mode=mode)
        (project,) = await admin_projects.list_projects(database, ME, tenant_id=tenant.id)
        key = await admin_keys.create_key(
            database, ME, pepper=PEPPER.encode(), tenant_id=tenant.id, project_id=project.id, name="live"
        )
        owner = f"owner@{tenant.slug}.example"
        await admin_users.create_user(
            database, ME, email=owner, password=PASSWORD, role="tenant_owner", tenant_id=tenant.id
        )
        found[name] = Customer(tenant.id, project.id, key.view.id, name, owner, owner)
    await admin_credits.grant_credit(
        database, ME, tenant_id=found["Northwind Robotics"].tenant_id, amount_usd="40", reason="welcome"
    )
    return found


async def _usage(platform: Platform, customers: dict[str, Customer], times: int) -> None:
    """Requests of both organisations, `times` each, the later months with more of their input cached."""
    for name, scale in (("Northwind Robotics", 3), ("Lumen Health", 5)):
        made = customers[name]
        payer = Payer(made.tenant_id, made.project_id, made.key_id, name)
        for number in range(times):
            await platform.use(
                payer,
                model=MODEL,
                input=40_000 * scale + number,
                cached=3_000 * scale * times,
                output=9_000 * scale + 7 * number,
            )


async def _hosts(database: Database, instants: list[datetime]) -> None:
    """Two hosts with GPUs that served, idled, loaded and slept in the hours of the usage."""
    for price, at in zip(("2.10", "2.40", "2.40"), instants, strict=True):
        since = (at - timedelta(days=4)).replace(hour=0, minute=0, second=0, microsecond=0)
        await admin_economics.set_host_price(
            database, ME, host_kind=HOST_KIND, usd_per_hour=price, source="contract", effective_from=since
        )
    async with database.system() as connection:
        for host in ("host-1", "host-2"):
            await connection.execute(
                text("INSERT INTO hosts (host_id, host_kind, region, gpus) VALUES (:h, :k, 'nyc2', 8)"),
                {"h": host, "k": HOST_KIND},
            )
        for at in instants:
            hour = at.replace(minute=0, second=0, microsecond=0)
            for host, state, seconds in (
                ("host-1", "serving", 2400),
                ("host-1", "warm_idle", 1200),
                ("host-2", "loading", 300),
                ("host-2", "asleep", 900),
            ):
                bound = {"h": host, "at": hour, "state": state, "s": seconds, "m": MODEL}
                await connection.execute(
                    text("INSERT INTO host_seconds VALUES (:h, 'b', :at, :state, :s)"), bound
                )
                await connection.execute(
                    text("INSERT INTO model_seconds VALUES (:h, 'b', :at, :m, :state, :s)"), bound
                )


async def _payments(database: Database, fake: FakeStripe, customers: dict[str, Customer]) -> None:
    """A purchase, and one that its payer's bank takes back."""
    tenant_id = customers["Northwind Robotics"].tenant_id
    async with gateway_to(fake) as gateway:
        await buy(database, gateway, fake, tenant_id, 5_000)
        await buy(database, gateway, fake, tenant_id, 2_000, card="pm_card_createDispute")


async def _changes(database: Database, customers: dict[str, Customer]) -> None:
    """An adjustment that is booked and one that waits for a second person."""
    tenant_id = customers["Lumen Health"].tenant_id
    for amount, reason in (("1.25", "an outage on Monday"), ("250", "a model that answered nonsense")):
        await admin_adjustments.request_adjustment(
            database, APPROVER, tenant_id=tenant_id, amount_usd=amount, reason=reason
        )


async def _engines(database: Database) -> None:
    """An engine that ended having counted more than any request used."""
    counted, warm = EngineCounters(900, 90), EngineCounters(100, 10)
    report = CounterReport(BOOT, "host-1/river-0", MODEL, "vllm", False, counted, warm, 0.0, 0.0, True, ())
    async with database.system() as connection:
        await record_counters(connection, report)
    await engine_reconciliation.run(database, confirm_s=0.0)
    rows = await admin_reconcile.list_engines(database, ME)
    assert any(row.unexplained_prompt for row in rows), "the seed's engine must not come out"
