"""Invitations of hosts over the admin REST: the token once, who may, how far each host is."""

from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text

from admin import host_joining, hosts
from admin.host_joining import RegistrationView
from core.db import Database
from core.settings import Settings
from jobs import retention
from scheduler.authority import known_fingerprint, obtain
from tests.integration.admin.rest import Caller, token_of
from tests.support.scheduling import beat
from tests.support.tenancy import ADMIN
from workers.host_credentials import join, rotate
from workers.host_hours import record_heartbeat
from workers.join_token import parse_token, secret_hash

INVITE = {"host": "b300-1", "valid_s": 7200, "reason": "rack 7"}


async def listed(caller: Caller, query: str = "") -> dict[str, tuple[str, bool]]:
    """State of each host, and whether its token can be used."""
    answer = await caller("GET", f"/hosts/invitations{query}")
    assert answer.status_code == 200, answer.text
    return {one["host"]: (one["state"], one["expires_at"] is not None) for one in answer.json()}


async def test_the_token_is_in_the_answer_alone(admin: Caller, database: Database) -> None:
    made = await admin("POST", "/hosts/invitations", INVITE)
    assert made.status_code == 201, made.text
    assert made.headers["cache-control"] == "no-store"
    token = made.json()["token"]
    [one] = (await admin("GET", "/hosts/invitations")).json()
    assert one == {
        "host": "b300-1",
        "state": "invited",
        "invited_at": one["invited_at"],
        "expires_at": made.json()["expires_at"],
        "joined_at": None,
        "revoked_at": None,
        "rotates": False,
        "rotated_at": None,
        "previous_until": None,
    }
    valid = datetime.fromisoformat(one["expires_at"]) - datetime.fromisoformat(one["invited_at"])
    assert abs(valid - timedelta(hours=2)) < timedelta(seconds=1), "two readings of one clock"
    secret = parse_token(token, "the answer").secret
    async with database.system() as connection:
        audit = (await connection.execute(text("SELECT CAST(audit_log AS text) FROM audit_log"))).scalars()
        assert not [row for row in audit if secret in row]


async def test_a_token_names_the_authority_of_schedulers(
    admin: Caller, database: Database, tmp_path: Path
) -> None:
    await obtain(database, b"internal", datetime.fromisoformat("2026-11-28T00:00:00+00:00"))
    known = await known_fingerprint(database, Settings(data_dir=tmp_path))
    made = await admin("POST", "/hosts/invitations", INVITE)
    assert known
    assert parse_token(made.json()["token"], "the answer").authority == known


async def test_how_far_hosts_are(admin: Caller, database: Database) -> None:
    tokens = {}
    for host in ("b300-1", "b300-2", "b300-3", "b300-4"):
        made = await admin("POST", "/hosts/invitations", {**INVITE, "host": host})
        tokens[host] = parse_token(made.json()["token"], host)
    async with database.system() as connection:
        assert await join(connection, "b300-2", tokens["b300-2"].hash, secret_hash("own")) == ""
        await connection.execute(
            text(
                "UPDATE host_credentials SET join_expires_at = now() - interval '1 s' WHERE host_id = 'b300-3'"
            )
        )
    revoked = await admin("POST", "/hosts/b300-4/revoke", {"reason": "sold"})
    assert (revoked.status_code, revoked.json()) == (200, {"host": "b300-4"})
    held = {
        "b300-3": ("token expired", True),
        "b300-2": ("own secret", False),
        "b300-1": ("invited", True),
    }
    assert list((await listed(admin)).items()) == list(held.items()), "the newest first"
    assert await listed(admin, "?revoked=true") == {"b300-4": ("revoked", False), **held}
    again = await admin("POST", "/hosts/invitations", {**INVITE, "host": "b300-2"})
    assert again.status_code == 201
    assert (await listed(admin))["b300-2"] == ("own secret", True), "the old secret holds until then"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"host": "not a name"}, "host"),
        ({"host": "sim-1"}, "host"),
        ({"valid_s": 0}, "valid_s"),
        ({"valid_s": 30 * 86_400 + 1}, "valid_s"),
        ({"reason": ""}, "reason"),
    ],
)
async def test_what_is_no_invitation_is_refused(admin: Caller, change: dict[str, object], param: str) -> None:
    answer = await admin("POST", "/hosts/invitations", {**INVITE, **change})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert await listed(admin, "?revoked=true") == {}


async def test_a_host_without_an_invitation_cannot_be_revoked(admin: Caller) -> None:
    answer = await admin("POST", "/hosts/b300-9/revoke", {"reason": "sold"})
    assert answer.status_code == 404
    assert "b300-9" in answer.json()["error"]["message"]


async def test_finance_looks_and_changes_nothing(admin: Caller, database: Database) -> None:
    await host_joining.invite(database, ADMIN, host="b300-1", valid=timedelta(hours=1), reason="test")
    finance = Caller(admin.client, await token_of(database, "finance"))
    assert await listed(finance) == {"b300-1": ("invited", True)}
    for path, body in (
        ("/hosts/invitations", INVITE),
        ("/hosts/b300-1/revoke", {"reason": "x"}),
        ("/hosts/b300-1/rotate", {"reason": "x"}),
    ):
        assert (await finance("POST", path, body)).status_code == 403
    assert await listed(finance) == {"b300-1": ("invited", True)}


async def test_what_hosts_have_registered(admin: Caller, database: Database) -> None:
    made = await admin("POST", "/hosts/invitations", INVITE)
    token = parse_token(made.json()["token"], "the answer")
    async with database.system() as connection:
        assert await join(connection, "b300-1", token.hash, secret_hash("own")) == ""
        for host in ("b300-1", "b300-2", "b300-3"):
            heartbeat = msgspec.structs.replace(beat(), host_id=host, address="10.0.0.7", version="1.2")
            await record_heartbeat(connection, heartbeat)
        seen = (
            await connection.execute(text("SELECT first_seen FROM hosts WHERE host_id = 'b300-2'"))
        ).scalar_one()
    [joined] = (await admin("GET", "/hosts/invitations")).json()
    at = datetime.fromisoformat(joined["joined_at"])
    found = await host_joining.joining(database, ADMIN, ["b300-1", "b300-2", "b300-9"])
    assert found.registrations == {
        "b300-1": RegistrationView("10.0.0.7", "1.2", at, "own secret"),
        "b300-2": RegistrationView("10.0.0.7", "1.2", seen, ""),
    }
    assert (found.invitations, found.silent) == (await host_joining.list_invitations(database, ADMIN), {})


async def test_a_host_that_joined_and_is_silent_is_reported_until_it_is_revoked(
    admin: Caller, database: Database
) -> None:
    """One without a secret of its own, which cannot be revoked, is forgotten."""
    made = await admin("POST", "/hosts/invitations", INVITE)
    token = parse_token(made.json()["token"], "the answer")
    async with database.system() as connection:
        assert await join(connection, "b300-1", token.hash, secret_hash("own")) == ""
        for host in ("b300-1", "b300-2"):
            await record_heartbeat(connection, msgspec.structs.replace(beat(), host_id=host))
    [heard, _] = await hosts.list_hosts(database, ADMIN)
    assert (heard.name, heard.status, heard.silent_since) == ("b300-1", "running", None)
    async with database.system() as connection:
        last = await connection.scalar(
            text("UPDATE hosts SET last_seen = clock_timestamp() - interval '1 hour' RETURNING last_seen")
        )
    [lost] = await hosts.list_hosts(database, ADMIN)
    assert (lost.name, lost.status, lost.wanted) == ("b300-1", "silent", True)
    assert lost.silent_since is not None
    assert abs(lost.silent_since - last) < timedelta(seconds=1)
    assert (await host_joining.joining(database, ADMIN, [])).silent == {"b300-1": lost.silent_since}
    await host_joining.revoke(database, ADMIN, host="b300-1", reason="sold")
    assert await hosts.list_hosts(database, ADMIN) == []
    assert (await host_joining.joining(database, ADMIN, [])).silent == {}


async def test_a_secret_is_replaced_on_demand(admin: Caller, database: Database) -> None:
    made = await admin("POST", "/hosts/invitations", INVITE)
    answer = await admin("POST", "/hosts/b300-1/rotate", {"reason": "quarter"})
    assert answer.status_code == 404
    assert "has no secret of its own" in answer.json()["error"]["message"]
    async with database.system() as connection:
        hashed = parse_token(made.json()["token"], "the answer").hash
        assert await join(connection, "b300-1", hashed, b"first") == ""
    answer = await admin("POST", "/hosts/b300-1/rotate", {"reason": "quarter", "overlap_s": 120})
    assert (answer.status_code, answer.json()) == (202, {"host": "b300-1", "overlap_s": 120.0})
    assert (await admin("POST", "/hosts/b300-1/rotate", {"reason": "x", "overlap_s": 1})).status_code == 400
    [asked] = (await admin("GET", "/hosts/invitations")).json()
    assert (asked["rotates"], asked["rotated_at"], asked["previous_until"]) == (True, None, None)
    async with database.system() as connection:
        assert await rotate(connection, "b300-1", b"first", b"second") == ""
    [done] = (await admin("GET", "/hosts/invitations")).json()
    assert (done["rotates"], done["rotated_at"] < done["previous_until"]) == (False, True)


async def test_rows_of_hosts_that_have_ended_are_deleted_after_a_time(
    admin: Caller, database: Database
) -> None:
    for host in ("ended", "unused", "joined", "recent"):
        made = await admin("POST", "/hosts/invitations", {**INVITE, "host": host})
        if host != "unused":
            async with database.system() as connection:
                hashed = parse_token(made.json()["token"], "the answer").hash
                assert await join(connection, host, hashed, host.encode()) == ""
    for host in ("ended", "recent"):
        assert (await admin("POST", f"/hosts/{host}/revoke", {"reason": "sold"})).status_code == 200
    async with database.engine.begin() as connection:
        await connection.execute(
            text(
                "UPDATE host_credentials SET invited_at = invited_at - interval '91 days', "
                "join_expires_at = join_expires_at - interval '91 days', "
                "revoked_at = revoked_at - CASE host_id WHEN 'recent' THEN interval '89 days' ELSE '91 days' END"
            )
        )
    async with database.system() as connection:
        assert await retention.prune(connection) == 2
    left = (await admin("GET", "/hosts/invitations?revoked=true")).json()
    assert {one["host"] for one in left} == {"joined", "recent"}
