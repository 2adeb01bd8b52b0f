"""POST /webhooks/stripe: signed events are written down once; everything else is refused and changes nothing."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import text

from api.app import _install_error_handlers
from api.stripe_webhooks import MAX_BODY_BYTES, router
from core.db import Database
from core.settings import Settings
from tests.support.clock import ManualClock

NOW = datetime(2026, 11, 1, tzinfo=UTC)
OLD, NEW = "whsec_old", "whsec_new"


def event(identity: str = "evt_1", kind: str = "invoice.paid", about: str = "invoice") -> dict[str, Any]:
    return {
        "id": identity,
        "object": "event",
        "type": kind,
        "created": int(NOW.timestamp()),
        "data": {"object": {"id": "in_1", "object": about}},
    }


def signed(body: bytes, secret: str = NEW, at: datetime = NOW) -> dict[str, str]:
    stamp = int(at.timestamp())
    digest = hmac.new(secret.encode(), b"%d." % stamp + body, hashlib.sha256).hexdigest()
    return {"stripe-signature": f"t={stamp},v1={digest}"}


@pytest.fixture
async def client(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    settings = Settings.model_construct(stripe_webhook_secret=SecretStr(f"{OLD}, {NEW}"))
    app.include_router(router(database, settings, ManualClock(NOW)))
    _install_error_handlers(app)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def rows(database: Database) -> list[Any]:
    async with database.read() as connection:
        return list(
            await connection.execute(text("SELECT id, outcome, found_by FROM stripe_events ORDER BY id"))
        )


async def post(client: httpx.AsyncClient, body: bytes, headers: dict[str, str]) -> httpx.Response:
    return await client.post("/webhooks/stripe", content=body, headers=headers)


@pytest.mark.promise(12)
@pytest.mark.parametrize("secret", [OLD, NEW])
async def test_a_signed_event_is_written_down_once(
    client: httpx.AsyncClient, database: Database, secret: str
) -> None:
    body = json.dumps(event()).encode()
    first = await post(client, body, signed(body, secret))
    again = await post(client, body, signed(body, secret))
    assert (first.status_code, again.status_code) == (200, 200)
    assert (first.json(), again.json()) == ({"received": True}, {"received": False})
    assert [(row.id, row.outcome, row.found_by) for row in await rows(database)] == [
        ("evt_1", None, "webhook")
    ]


async def test_kinds_that_nobody_follows_are_recorded_and_ignored(
    client: httpx.AsyncClient, database: Database
) -> None:
    body = json.dumps(event("evt_2", "payout.paid", "payout")).encode()
    assert (await post(client, body, signed(body))).status_code == 200
    assert [(row.id, row.outcome) for row in await rows(database)] == [("evt_2", "ignored")]


async def test_forged_old_malformed_and_huge_bodies_change_nothing(
    client: httpx.AsyncClient, database: Database
) -> None:
    body = json.dumps(event()).encode()
    deep = b"[" * 50_000 + b"]" * 50_000
    broken = [b"", b"{", b"[]", b'"evt"', b"\xff\xfe", b"{}", deep, json.dumps(event(identity="")).encode()]
    answers = [
        (await post(client, body, {}), 401),
        (await post(client, body, signed(body, "whsec_wrong")), 401),
        (await post(client, body + b" ", signed(body)), 401),
        (await post(client, body, signed(body, at=NOW - timedelta(seconds=301))), 401),
        (await post(client, body, signed(body, at=NOW + timedelta(seconds=301))), 401),
        (await post(client, b"x" * (MAX_BODY_BYTES + 1), {}), 413),
        *[(await post(client, each, signed(each)), 400) for each in broken],
    ]
    assert [answer.status_code for answer, _ in answers] == [status for _, status in answers]
    assert all("message" in answer.json()["error"] for answer, _ in answers)
    assert await rows(database) == []
