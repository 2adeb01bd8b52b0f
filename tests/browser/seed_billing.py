"""A customer's billing pages in tests: the months of finance with a contract, invoices and people of all roles."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from admin import alerts as admin_alerts
from admin import contracts as admin_contracts
from admin import invoices as admin_invoices
from admin import users as admin_users
from core.db import Database
from tests.browser.seed import ME, PASSWORD, Customer
from tests.browser.seed_finance import finance_seed, months
from tests.support.stripe_sim import FakeStripe


def billing_seed(fake: FakeStripe) -> Callable[[Database, Path], Awaitable[dict[str, Customer]]]:
    """The seed over a local Stripe."""

    async def fill(database: Database, spool: Path) -> dict[str, Customer]:
        customers = await finance_seed(fake)(database, spool)
        customers = {name: await _viewer(database, one) for name, one in customers.items()}
        northwind = customers["Northwind Robotics"]
        await admin_contracts.add_contract(
            database,
            ME,
            tenant_id=northwind.tenant_id,
            discount_bps=1250,
            sla={"metric": "ttft", "percentile": 95, "threshold": 800, "credit_percent": 10},
            reason="a year together",
        )
        await admin_alerts.set_alert(
            database, ME, tenant_id=northwind.tenant_id, kind="low_balance", amount_usd="15"
        )
        first = months(datetime.now(UTC))[0].date().replace(day=1)
        await admin_invoices.make_invoices(database, ME, month=first)
        return customers

    return fill


async def _viewer(database: Database, customer: Customer) -> Customer:
    """The customer with somebody who may only read."""
    viewer = customer.owner.replace("owner@", "viewer@")
    await admin_users.create_user(
        database, ME, email=viewer, password=PASSWORD, role="tenant_viewer", tenant_id=customer.tenant_id
    )
    return msgspec.structs.replace(customer, viewer=viewer)
