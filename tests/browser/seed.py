"""What the console shows in tests: organisations, people, prices, and requests settled the real way."""

import asyncio
from pathlib import Path
from uuid import UUID

import msgspec

from admin import accounts as admin_accounts
from admin import credits as admin_credits
from admin import keys as admin_keys
from admin import models as admin_models
from admin import prices as admin_prices
from admin import projects as admin_projects
from admin import tenants as admin_tenants
from admin import users as admin_users
from admin.actor import system_actor
from billing.metering.holds import HoldManager
from billing.metering.meter import Meter
from billing.metering.records import HoldRequest, OpenRecord, Outcome, UsageRecord
from core.clock import SystemClock
from core.db import Database
from core.ids import uuid7
from core.tokens import TokenUsage
from tests.support.waiting import until

MODEL = "penstock/tiny"
PASSWORD = "correct horse battery staple"
PEPPER = "pepper of the browser tests, 32 bytes"
ADMIN = "admin@penstock.local"
FINANCE = "finance@penstock.local"
ME = system_actor("test")


class Customer(msgspec.Struct):
    """An organisation of the seed."""

    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    name: str
    owner: str
    viewer: str


async def seed(database: Database, spool_dir: Path) -> dict[str, Customer]:
    """Fill an empty, migrated database. Returns the customers by name."""
    for email, role in ((ADMIN, "platform_admin"), (FINANCE, "finance")):
        await admin_users.create_user(database, ME, email=email, password=PASSWORD, role=role)
    await admin_models.add_model(database, ME, name=MODEL)
    await admin_prices.set_price(
        database, ME, model=MODEL, input="0.50", cached_input="0.05", output="1.50", reasoning="1.50"
    )
    customers = {name: await _customer(database, name) for name in ("Northwind Robotics", "Lumen Health")}
    for customer in customers.values():
        await admin_credits.grant_credit(
            database, ME, tenant_id=customer.tenant_id, amount_usd="25", reason="welcome"
        )
    await _requests(database, spool_dir, customers["Northwind Robotics"], 12)
    await _requests(database, spool_dir, customers["Lumen Health"], 5)
    return customers


async def _customer(database: Database, name: str) -> Customer:
    tenant = await admin_tenants.create_tenant(database, ME, name=name)
    (project,) = await admin_projects.list_projects(database, ME, tenant_id=tenant.id)
    key = await admin_keys.create_key(
        database, ME, pepper=PEPPER.encode(), tenant_id=tenant.id, project_id=project.id, name="production"
    )
    people = {}
    for role in ("owner", "viewer"):
        people[role] = f"{role}@{tenant.slug}.example"
        await admin_users.create_user(
            database, ME, email=people[role], password=PASSWORD, role=f"tenant_{role}", tenant_id=tenant.id
        )
    return Customer(tenant.id, project.id, key.view.id, name, **people)


async def _requests(database: Database, spool_dir: Path, customer: Customer, number: int) -> None:
    """Hold, open, settle: what the gateway does around the engine."""
    manager = HoldManager(database.url, "api-seed", ttl_s=60, clock=SystemClock(), timeout_s=10.0)
    meter = Meter(database.url, spool_dir, f"api-seed-{customer.tenant_id}")
    await manager.start()
    await meter.start()
    try:
        await asyncio.gather(*(_request(manager, meter, customer, index) for index in range(number)))

        async def settled() -> bool:
            account = await admin_accounts.get_account(database, ME, tenant_id=customer.tenant_id)
            return account.open_requests == 0

        await until(settled)
    finally:
        await meter.close()
        await manager.close()


async def _request(manager: HoldManager, meter: Meter, customer: Customer, index: int) -> None:
    granted = await manager.place(
        HoldRequest(
            request_id=uuid7(),
            tenant_id=customer.tenant_id,
            project_id=customer.project_id,
            key_id=customer.key_id,
            model=MODEL,
            tier="standard",
            max_input_tokens=2_000,
            max_output_tokens=600,
        )
    )
    record = OpenRecord(
        request_id=granted.request_id,
        tenant_id=customer.tenant_id,
        project_id=customer.project_id,
        key_id=customer.key_id,
        model=MODEL,
        tier="standard",
        region="local",
        price=granted.price,
        list_price=granted.list_price,
        admitted_at=granted.admitted_at,
        replica_id="host-1/tiny-0",
        boot_id="boot-1",
        simulated=False,
        stream=True,
    )
    meter.open(record)
    meter.settle(
        UsageRecord(
            open=record,
            outcome=Outcome.COMPLETED,
            usage=TokenUsage(input=1_000 + index, cached_input=200, output=500, reasoning=0),
            ttft_us=120_000 + 1_000 * index,
            duration_us=900_000,
        )
    )
