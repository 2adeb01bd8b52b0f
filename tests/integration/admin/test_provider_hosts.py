"""Hosts from providers over REST: desired, list, calls, costs, reclaims, and whose they are."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from core.db import Database
from core.money import usd_to_pico
from tests.integration.admin.rest import Caller, token_of
from tests.support.provider_hosts import add_host
from workers.providers.interface import CallResult, Outcome
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


GROUP = {"provider": "digitalocean", "region": "nyc2", "kind": "gpu-h100x8-640gb"}


async def test_a_group_of_hosts_is_asked_for_and_released(admin: Caller) -> None:
    asked = await admin("PUT", "/hosts/desired", {**GROUP, "count": 2, "hold_s": 3600, "reason": "launch"})
    assert asked.status_code == 200
    told = asked.json()
    assert told | GROUP == told
    assert (told["desired"], told["running"], told["coming"]) == (2, 0, 0)
    left = datetime.fromisoformat(told["expires_at"]) - datetime.now(UTC)
    assert (told["owner"], timedelta(minutes=55) < left <= timedelta(hours=1)) == ("person", True)
    assert (await admin("GET", "/hosts/desired")).json() == [told]
    released = (await admin("POST", "/hosts/desired/release", {**GROUP, "reason": "over"})).json()
    assert released == told | {"owner": "plan", "expires_at": None}
    again = await admin("POST", "/hosts/desired/release", {**GROUP, "reason": "over"})
    assert (again.status_code, "no person decides" in again.json()["error"]["message"]) == (404, True)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"provider": "static"}, "provider"),
        ({"region": ""}, "region"),
        ({"count": -1}, "count"),
        ({"count": 1025}, "count"),
        ({"hold_s": 0}, "hold_s"),
        ({"hold_s": 32 * 86_400}, "hold_s"),
    ],
    ids=["provider", "region", "negative", "many", "no-time", "long"],
)
async def test_wrong_groups_are_refused(admin: Caller, change: dict[str, object], param: str) -> None:
    answer = await admin("PUT", "/hosts/desired", {**GROUP, "count": 1, "reason": "x"} | change)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert (await admin("GET", "/hosts/desired")).json() == []


async def test_a_group_gets_an_image(admin: Caller, database: Database) -> None:
    """The hosts that were made from another one are counted, and shown with theirs."""
    group = {**GROUP, "kind": "gpu-h100x1-80gb", "image": "183456789", "reason": "driver 590"}
    unknown = await admin("PUT", "/hosts/desired/image", group)
    assert unknown.status_code == 404
    assert "no hosts of this group are desired" in unknown.json()["error"]["message"]
    place = {name: group[name] for name in ("provider", "region", "kind")}
    await admin("PUT", "/hosts/desired", {**place, "count": 2, "reason": "launch"})
    made = await add_host(database, "fleet-1", datetime.now(UTC), model="")
    store = DatabaseIntents(database)
    await store.save(made, msgspec.structs.replace(made, image="172222222"))
    told = (await admin("PUT", "/hosts/desired/image", {**group, "surge": False})).json()
    assert (told["image"], told["outdated"], told["surge"]) == ("183456789", 1, False)
    assert (await admin("GET", "/hosts/desired")).json() == [told]
    assert [host["image"] for host in (await admin("GET", "/hosts")).json()] == ["172222222"]
    changed = (await admin("PUT", "/hosts/desired", {**place, "count": 3, "reason": "more"})).json()
    assert (changed["desired"], changed["image"]) == (3, "183456789")
    for bad in ({"image": "a b"}, {"image": "x" * 101}, {"provider": "local"}):
        refused = await admin("PUT", "/hosts/desired/image", group | bad)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(bad)))
    cleared = (await admin("PUT", "/hosts/desired/image", {**group, "image": ""})).json()
    assert (cleared["image"], cleared["outdated"]) == ("", 0)


async def test_a_model_that_is_not_served_gets_no_hosts(admin: Caller) -> None:
    answer = await admin("PUT", "/hosts/desired", {**GROUP, "model": "nothing", "count": 1, "reason": "x"})
    assert (answer.status_code, "'nothing'" in answer.json()["error"]["message"]) == (404, True)


async def test_intents_and_calls_are_listed(admin: Caller, database: Database) -> None:
    now = datetime.now(UTC)
    intent = await add_host(database, "fleet-1", now, price=usd_to_pico("3.60"))
    await add_host(database, "fleet-0", now - timedelta(hours=1), ended_at=now)
    [shown] = (await admin("GET", "/hosts/intents")).json()
    assert (shown["name"], shown["state"], shown["wanted"]) == ("fleet-1", "exists", True)
    assert len((await admin("GET", "/hosts/intents?ended=true")).json()) == 2
    records = DatabaseIntents(database)
    await records.record("digitalocean", [CallResult("list", Outcome.OK, 200)])
    await records.save(intent, intent, CallResult("create", Outcome.REFUSED, 422, "no such size"))
    [event] = (await admin("GET", "/hosts/events")).json()
    assert (event["host"], event["call"], event["outcome"]) == ("fleet-1", "create", "refused")
    assert (event["status"], event["detail"], event["usd_per_hour"]) == (422, "no such size", "3.60")
    assert len((await admin("GET", "/hosts/events?reads=true")).json()) == 2
    assert len((await admin("GET", "/hosts/events?host=fleet-1&limit=1")).json()) == 1
    assert (await admin("GET", "/hosts/events?host=other")).json() == []
    assert (await admin("GET", "/hosts/events?limit=0")).status_code == 400


async def test_a_change_of_account_is_confirmed(admin: Caller, database: Database) -> None:
    body = {"provider": "digitalocean", "fleet": "production", "account": "a1", "reason": "moved"}
    unasked = await admin("POST", "/hosts/adopt", body)
    assert (unasked.status_code, unasked.json()["error"]["param"]) == (409, "provider")
    await DatabaseIntents(database).notice("digitalocean", "the account is another one")
    assert (await admin("GET", "/hosts/notices")).json() == ["the account is another one"]
    told = (await admin("POST", "/hosts/adopt", body)).json()
    assert (told["fleet"], told["account"], told["hosts_left"]) == ("production", "a1", [])
    assert (await admin("GET", "/hosts/notices")).json() == []

    await add_host(database, "production-1", datetime.now(UTC))
    await DatabaseIntents(database).notice("digitalocean", "the account is another one")
    left = await admin("POST", "/hosts/adopt", {**body, "account": "a2"})
    assert (left.status_code, left.json()["error"]["param"]) == (409, "leave_hosts")
    told = (await admin("POST", "/hosts/adopt", {**body, "account": "a2", "leave_hosts": True})).json()
    assert (told["account"], told["hosts_left"]) == ("a2", ["production-1"])


async def test_finance_reads_and_changes_nothing(admin: Caller, database: Database) -> None:
    finance = Caller(admin.client, await token_of(database, "finance"))
    for path in ("desired", "intents", "events", "notices"):
        assert (await finance("GET", f"/hosts/{path}")).json() == []
    changes = (
        ("PUT", "desired", {**GROUP, "count": 1}),
        ("PUT", "desired/image", {**GROUP, "image": "1"}),
        ("POST", "desired/release", GROUP),
        ("POST", "adopt", {"provider": "digitalocean", "fleet": "production", "account": "a1"}),
    )
    for method, path, body in changes:
        assert (await finance(method, f"/hosts/{path}", {**body, "reason": "x"})).status_code == 403
    assert (await finance("GET", "/hosts/desired")).json() == []
