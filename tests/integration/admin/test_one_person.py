"""What docs/operations.md says that a platform with one person can do, and cannot."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from admin import accounts, adjustments, contracts, credits, decisions, money_rules, prices
from admin.actor import Actor
from admin.logins import authenticate_token
from admin.tenants import create_tenant
from cli.bootstrap import bootstrap
from cli.rundir import Secrets
from core.db import Database
from core.errors import Conflict, PermissionDenied, WaitsForApproval
from tenants.principal import Limits
from tests.integration.admin.test_confirmed_people import SHELL, make
from workers.catalog import load_catalog

CATALOG = load_catalog()
MODEL = next(iter(CATALOG.models))


@pytest.fixture
async def ada(database: Database) -> Actor:
    """The person whom `penstock up` makes, beside the catalogue at its prices and the demo organisation's credit."""
    secrets = Secrets()
    await bootstrap(database, secrets, CATALOG, demo=True, limits=Limits())
    return await authenticate_token(database, secrets.admin_token, pepper=secrets.key_pepper.encode())


async def _customer(database: Database, actor: Actor, mode: str = "prepaid") -> UUID:
    return (await create_tenant(database, actor, name=f"Acme {mode}", billing_mode=mode)).id


async def test_what_one_person_does_alone(database: Database, ada: Actor) -> None:
    prepaid, postpaid = await _customer(database, ada), await _customer(database, ada, "postpaid")
    await credits.grant_credit(database, ada, tenant_id=prepaid, amount_usd="60", reason="r")
    adjusted = await adjustments.request_adjustment(
        database, ada, tenant_id=prepaid, amount_usd="-40", reason="r"
    )
    assert adjusted.status == "booked"
    await accounts.set_credit_limit(database, ada, tenant_id=postpaid, usd="100", reason="r")
    await accounts.set_credit_limit(database, ada, tenant_id=postpaid, usd="1", reason="r")
    await prices.set_price(database, ada, model="a-new-model", input="1", output="2")
    await money_rules.set_rules(database, ada, approval_limit_usd="500", reason="no one else is here yet")
    await credits.grant_credit(database, ada, tenant_id=prepaid, amount_usd="400", reason="r")


async def _price(database: Database, ada: Actor) -> Any:
    await prices.set_price(database, ada, model=MODEL, input="0", output="0", below_cost=True)


async def _grant(database: Database, ada: Actor) -> Any:
    prepaid = await _customer(database, ada)
    await credits.grant_credit(database, ada, tenant_id=prepaid, amount_usd="100.01", reason="r")


async def _contract(database: Database, ada: Actor) -> Any:
    postpaid = await _customer(database, ada, "postpaid")
    await contracts.add_contract(database, ada, tenant_id=postpaid, discount_bps=1, reason="r")


async def _no_limit(database: Database, ada: Actor) -> Any:
    postpaid = await _customer(database, ada, "postpaid")
    await accounts.set_credit_limit(database, ada, tenant_id=postpaid, usd="1", reason="r")
    await accounts.set_credit_limit(database, ada, tenant_id=postpaid, usd=None, reason="r")


@pytest.mark.parametrize("act", [_price, _grant, _contract, _no_limit])
async def test_what_waits_for_a_second_person_whom_the_shell_makes(
    database: Database, ada: Actor, act: Callable[[Database, Actor], Awaitable[Any]]
) -> None:
    with pytest.raises(WaitsForApproval):
        await act(database, ada)
    [waiting] = await decisions.list_approvals(database, ada)
    eve = await make(database, ada, "eve")
    for person in (ada, eve):
        with pytest.raises(Conflict):
            await decisions.decide(database, person, approval_id=waiting.id, approve=True)
    with pytest.raises(PermissionDenied):
        await decisions.decide(database, SHELL, approval_id=waiting.id, approve=True)
    bob = await make(database, SHELL, "bob", "finance")
    await decisions.decide(database, bob, approval_id=waiting.id, approve=True)
