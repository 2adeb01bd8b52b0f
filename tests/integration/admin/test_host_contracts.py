"""Contracts for hosts over REST and in the shell: entered, listed, ended, refused, recorded."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from cli.main import app
from core.db import Database
from tests.integration.admin.rest import NOBODY, Caller, token_of

KIND = "gpu-b300x8-2304gb-spot"
TERM = {"starts_at": "2026-12-01T00:00:00Z", "ends_at": "2099-12-01T00:00:00Z"}
CONTRACT = {
    "kind": KIND,
    "count": 2,
    "usd_per_hour": "48.123456789012",
    "source": "contract 17",
    "reason": "signed",
}


async def test_a_contract_is_entered_and_ended(admin: Caller, database: Database) -> None:
    made = await admin("POST", "/pools/contracts", {**CONTRACT, "region": "NYC2"})
    assert made.status_code == 201
    told = made.json()
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    assert timedelta() <= hour - datetime.fromisoformat(told["starts_at"]) <= timedelta(hours=1)
    assert told | {
        "kind": KIND, "region": "nyc2", "count": 2, "usd_per_hour": "48.123456789012", "ends_at": None,
        "state": "running", "hosts": [],
    } == told  # fmt: skip
    async with database.system() as connection:
        await connection.execute(
            text("INSERT INTO hosts (host_id, host_kind, region, gpus) VALUES ('rack-1', :kind, 'nyc2', 8)"),
            {"kind": KIND},
        )
    finance = Caller(admin.client, await token_of(database, "finance"))
    assert (await finance("GET", "/pools/contracts")).json() == [told | {"hosts": ["rack-1"]}]
    [host] = (await finance("GET", "/hosts")).json()
    assert (host["name"], host["contract_id"]) == ("rack-1", told["contract_id"])
    path = f"/pools/contracts/{told['contract_id']}/end"
    ended = await admin("POST", path, {"ends_at": "2099-01-01T00:00:00Z", "reason": "not renewed"})
    assert (ended.status_code, ended.json()["ends_at"], ended.json()["state"]) == (
        200, "2099-01-01T00:00:00Z", "running",
    )  # fmt: skip
    never = await admin("POST", path, {"ends_at": told["starts_at"], "reason": "entered twice"})
    assert (never.json()["state"], never.json()["hosts"]) == ("ended", [])
    for caller, body in (
        (finance, {"reason": "x"}),
        (admin, {"reason": "x", "ends_at": "2026-01-01T00:00:00Z"}),
    ):
        assert (await caller("POST", path, body)).status_code in (400, 403)
    assert (await finance("POST", "/pools/contracts", CONTRACT)).status_code == 403
    unknown = await admin("POST", f"/pools/contracts/{NOBODY}/end", {"reason": "x"})
    assert (unknown.status_code, NOBODY in unknown.json()["error"]["message"]) == (404, True)
    async with database.system() as connection:
        rows = await connection.execute(
            text("SELECT action, reason FROM audit_log WHERE object_kind = 'host_contract' ORDER BY at")
        )
        assert [tuple(row) for row in rows] == [
            ("host_contract.add", "signed"),
            ("host_contract.end", "not renewed"),
            ("host_contract.end", "entered twice"),
        ]


@pytest.mark.parametrize(
    ("change", "param", "told"),
    [
        ({"kind": "h1000"}, "kind", "no kind of host 'h1000'"),
        ({"count": 0}, "count", ""),
        ({"usd_per_hour": "-1"}, "usd_per_hour", "0 to 100,000 dollars"),
        ({"usd_per_hour": "0.1234567890123"}, "usd_per_hour", "more than 12 decimals"),
        ({"starts_at": "2026-12-01T00:30:00Z"}, "starts_at", "must be a whole UTC hour"),
        ({"ends_at": "2026-12-01T00:00:00"}, "ends_at", "must be a whole UTC hour"),
        ({**TERM, "ends_at": "2026-12-01T00:00:00Z"}, "ends_at", "not after its start"),
        ({"source": " "}, "source", "say where the contract is"),
    ],
    ids=["kind", "count", "negative", "decimals", "half-hour", "no-zone", "empty", "source"],
)
async def test_wrong_contracts_are_refused(
    admin: Caller, change: dict[str, object], param: str, told: str
) -> None:
    answer = await admin("POST", "/pools/contracts", CONTRACT | change)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert told in answer.json()["error"]["message"]
    assert (await admin("GET", "/pools/contracts")).json() == []


async def test_the_commands(database: Database, pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)

    async def shell(*words: str) -> tuple[int, str]:
        result = await asyncio.to_thread(CliRunner().invoke, app, ["pools", "contract", *words])
        return result.exit_code, result.output

    because = ("--source", "17", "--reason", "signed")
    code, output = await shell("add", KIND, "2", "48", "--until", "2099-01-01", *because, "--json")
    made = json.loads(output)
    assert (code, made["usd_per_hour"], made["ends_at"]) == (0, "48.00", "2099-01-01T00:00:00Z")
    code, output = await shell(
        "end", made["contract_id"], "--until", "2098-01-01", "--reason", "over", "--json"
    )
    assert (code, json.loads(output)["ends_at"]) == (0, "2098-01-01T00:00:00Z")
    code, output = await shell("end", made["contract_id"], "--reason", "at once", "--json")
    left = datetime.fromisoformat(json.loads(output)["ends_at"]) - datetime.now(UTC)
    assert (code, timedelta(minutes=-5) < left <= timedelta(hours=1)) == (0, True), (
        "the end of the running hour"
    )
    code, output = await shell("list", "--json")
    assert (code, [one["contract_id"] for one in json.loads(output)]) == (0, [made["contract_id"]])
    code, output = await shell("add", KIND, "2", "48", "--from", "soon", *because)
    assert (code, "--from must be a date" in output) == (2, True)
