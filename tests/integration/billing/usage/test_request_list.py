"""The list of settled requests: newest first, filtered, in pages, and only of the own organisation."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from admin import requests as admin_requests
from admin.actor import Actor
from billing.usage.request_list import RequestFilter, id_floor
from core.errors import InvalidRequest, NotFound, PermissionDenied
from core.ids import uuid7
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import Customer, make_customer, price
from tests.support.tenancy import ADMIN

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def reader_of(customer: Customer) -> Actor:
    """An actor who may read one organisation."""
    return Actor("user", str(UUID(int=5)), "reader@example", "tenant_viewer", customer.tenant_id)


async def two(platform: Platform) -> tuple[Customer, Customer]:
    """Two organisations with credit and a priced model."""
    await price(platform.database)
    return (
        await make_customer(platform.database, "100", name="Acme"),
        await make_customer(platform.database, "100", name="Globex"),
    )


async def test_newest_first_a_page_at_a_time(platform: Platform) -> None:
    acme, globex = await two(platform)
    now = await platform.clock.now()
    made = [
        await platform.use(acme, input=10, output=number, ended_at=now - timedelta(minutes=10 - number))
        for number in range(1, 6)
    ]
    await platform.use(globex, input=10, output=9)
    reader, database = reader_of(acme), platform.database
    first = await admin_requests.list_requests(database, reader, since=LONG_AGO, limit=3)
    assert [one.request_id for one in first] == made[:1:-1]
    rest = await admin_requests.list_requests(database, reader, since=LONG_AGO, before=first[-1].request_id)
    assert [one.request_id for one in rest] == made[1::-1]
    assert {one.replica_id for one in first} == {None}, "which machine answered is not the customer's"
    recent = await admin_requests.list_requests(database, reader, since=now - timedelta(minutes=7))
    assert [one.request_id for one in recent] == made[:3:-1] + made[3:2:-1]
    everybody = await admin_requests.list_requests(database, ADMIN, since=LONG_AGO)
    assert len(everybody) == 6
    assert {one.tenant for one in everybody} == {"Acme", "Globex"}


async def test_filters_narrow_and_nonsense_is_refused(platform: Platform) -> None:
    acme, _ = await two(platform)
    await platform.use(acme, input=10, output=3)
    failed = await platform.use(acme, input=10, output=3, outcome="engine_failed")
    reader, database = reader_of(acme), platform.database
    for chosen, number in (
        (RequestFilter(outcome="engine_failed"), 1),
        (RequestFilter(model="another"), 0),
        (RequestFilter(key_id=acme.key_id), 2),
        (RequestFilter(key_id=uuid7()), 0),
    ):
        found = await admin_requests.list_requests(database, reader, chosen=chosen, since=LONG_AGO)
        assert len(found) == number, chosen
    with pytest.raises(InvalidRequest, match="outcome must be one of"):
        await admin_requests.list_requests(
            database, reader, chosen=RequestFilter(outcome="gone"), since=LONG_AGO
        )
    detail = await admin_requests.show_request(database, reader, request_id=failed)
    assert detail.receipt["cost_usd"] == detail.request.cost_usd == "0.00"
    assert "costs nothing" in detail.receipt["why"]


@pytest.mark.promise(23)
async def test_another_organisations_request_is_like_none(platform: Platform) -> None:
    acme, globex = await two(platform)
    theirs = await platform.use(globex, input=10, output=3)
    reader, database = reader_of(acme), platform.database
    with pytest.raises(NotFound):
        await admin_requests.show_request(database, reader, request_id=theirs)
    with pytest.raises(PermissionDenied):
        await admin_requests.list_requests(database, reader, tenant_id=globex.tenant_id, since=LONG_AGO)
    assert (
        await admin_requests.show_request(database, ADMIN, request_id=theirs)
    ).request.tenant_id == globex.tenant_id


def test_an_id_floor_cuts_time() -> None:
    at = datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert id_floor(at).int >> 80 == int(at.timestamp() * 1000)
    assert id_floor(LONG_AGO) < id_floor(at)
