"""Hosts from providers over REST: list, costs, and notices of reclaims."""

from datetime import UTC, datetime, timedelta

import pytest

from core.db import Database
from core.money import usd_to_pico
from tests.integration.admin.rest import Caller, token_of
from tests.support.provider_hosts import add_host
from workers.providers.store import DatabaseIntents


def soon(**time: int) -> str:
    return (datetime.now(UTC) + timedelta(**time)).isoformat()


async def test_a_notice_is_entered_and_withdrawn(admin: Caller, database: Database) -> None:
    await add_host(database, "fleet-1", datetime.now(UTC))
    at = soon(hours=2)
    told = await admin("POST", "/hosts/fleet-1/reclaim", {"at": at, "reason": "webhook"})
    assert told.status_code == 200
    assert datetime.fromisoformat(told.json()["reclaim_at"]) == datetime.fromisoformat(at)
    [listed] = (await admin("GET", "/hosts")).json()
    assert (listed["name"], listed["reclaim_at"]) == ("fleet-1", told.json()["reclaim_at"])
    told = await admin("POST", "/hosts/fleet-1/reclaim/cancel", {"reason": "wrong host"})
    assert (told.status_code, told.json()["reclaim_at"]) == (200, None)
    [intent] = await DatabaseIntents(database).load("digitalocean", ())
    assert intent.reclaim_at is None


@pytest.mark.parametrize(
    ("host", "at", "status", "told"),
    [
        ("other", soon(hours=1), 404, "'other'"),
        ("ended", soon(hours=1), 409, "ended has ended"),
        ("fleet-1", soon(hours=-1), 400, "at most 7 days ahead"),
        ("fleet-1", soon(days=8), 400, "at most 7 days ahead"),
        ("fleet-1", "2026-12-01T00:00:00", 400, "no time zone"),
        ("fleet-1", "tomorrow", 400, "at"),
    ],
    ids=["unknown", "ended", "past", "far", "zone", "word"],
)
async def test_wrong_notices_are_refused(
    admin: Caller, database: Database, host: str, at: str, status: int, told: str
) -> None:
    now = datetime.now(UTC)
    await add_host(database, "fleet-1", now)
    await add_host(database, "ended", now - timedelta(hours=1), ended_at=now)
    answer = await admin("POST", f"/hosts/{host}/reclaim", {"at": at, "reason": "mail"})
    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]
    loaded = await DatabaseIntents(database).load("digitalocean", ())
    assert [one.reclaim_at for one in loaded] == [None] * len(loaded)


async def test_finance_sees_costs_and_enters_no_notice(admin: Caller, database: Database) -> None:
    created = datetime(2026, 10, 10, 5, tzinfo=UTC)
    await add_host(database, "old", created, price=usd_to_pico("3.60"), ended_at=created + timedelta(hours=1))
    await add_host(database, "fleet-1", datetime.now(UTC))
    finance = Caller(admin.client, await token_of(database, "finance"))
    assert (await finance("GET", "/hosts/costs?month=2026-10")).json() == [
        {
            "provider": "digitalocean",
            "kind": "gpu-h100x1-80gb",
            "hosts": 1,
            "cost_usd": "3.60",
            "no_agent_usd": "3.60",
        }
    ]
    assert (await finance("GET", "/hosts/costs?month=soon")).status_code == 400
    for path in ("reclaim", "reclaim/cancel"):
        body = {"reason": "x", **({"at": soon(hours=1)} if path == "reclaim" else {})}
        assert (await finance("POST", f"/hosts/fleet-1/{path}", body)).status_code == 403
