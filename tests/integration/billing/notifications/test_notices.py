"""Delivery of notices: signed webhooks to a real server, mail to a real SMTP server, retries, the outbox."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web
from sqlalchemy import text

from admin import alerts as admin_alerts
from admin import users as admin_users
from billing.notifications import mail, webhooks
from billing.notifications.delivery import MAX_ATTEMPTS, DeliveryConfig, deliver
from billing.notifications.mail import SmtpServer
from billing.notifications.notices import notify
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied, Unavailable
from tests.support.ports import free_port, listening
from tests.support.smtp import Mailbox, smtp_server
from tests.support.tenancy import ADMIN, PEPPER, audit_actions, make_organisation, member

LOOPBACK = frozenset({"127.0.0.1"})
SENDERS = DeliveryConfig(pepper=PEPPER, smtp=None, allow_hosts=LOOPBACK)


class Receiver:
    """A webhook receiver with a configurable answer."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 204
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), await request.read()))
        headers = {"Location": self.url + "/elsewhere"} if self.status == 302 else {}
        return web.Response(status=self.status, headers=headers)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made, app = Receiver(), web.Application()
    app.router.add_post("/{tail:.*}", made.take)
    app.router.add_get("/{tail:.*}", made.take)
    runner = web.AppRunner(app)
    await runner.setup()
    server = listening()
    await web.SockSite(runner, server).start()
    made.url = f"http://127.0.0.1:{server.getsockname()[1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
def mail_server() -> Iterator[tuple[Mailbox, SmtpServer]]:
    mailbox = Mailbox()
    with smtp_server(mailbox) as port:
        yield mailbox, SmtpServer("127.0.0.1", port, "billing@penstock.example")


async def tell(database: Database, tenant_id: UUID | None, **changes: Any) -> None:
    facts = {"kind": "budget.threshold", "subject": "s", "body": "b", "facts": {"usd": "0.10"}, **changes}
    async with database.system() as connection:
        await notify(connection, tenant_id=tenant_id, **facts)


async def make_due(database: Database) -> None:
    """Make the next attempt due."""
    async with database.system() as connection:
        await connection.execute(
            text("UPDATE notice_deliveries SET next_try_at = clock_timestamp() WHERE state = 'pending'")
        )


async def states(database: Database, tenant_id: UUID | None) -> list[tuple[str, str]]:
    notices = await admin_alerts.list_notices(database, ADMIN, tenant_id=tenant_id)
    return [(d["channel"], d["state"]) for notice in notices for d in notice.deliveries]


async def hook(database: Database, receiver: Receiver, tenant_id: UUID | None, **changes: Any) -> str:
    created = await admin_alerts.add_endpoint(
        database,
        ADMIN,
        tenant_id=tenant_id,
        channel="webhook",
        target=receiver.url + "/hook",
        pepper=PEPPER,
        allow_hosts=LOOPBACK,
        **changes,
    )
    assert created.secret is not None
    return created.secret


async def test_a_webhook_is_signed_and_sent_once(database: Database, receiver: Receiver) -> None:
    acme = await make_organisation(database)
    other = await make_organisation(database, "Other")
    secret = await hook(database, receiver, acme.tenant_id)
    await tell(database, acme.tenant_id, key="once")
    await tell(database, acme.tenant_id, key="once")
    await tell(database, other.tenant_id)
    results = await asyncio.gather(*(deliver(database, SENDERS) for _ in range(4)))
    assert sum(results) == 1
    [(headers, body)] = receiver.got
    stamp = int(headers["Penstock-Signature"].partition(",")[0][2:])
    assert headers["Penstock-Signature"] == webhooks.signature(secret, stamp, body)
    sent = json.loads(body)
    assert (sent["kind"], sent["facts"], sent["tenant_id"]) == (
        "budget.threshold",
        {"usd": "0.10"},
        str(acme.tenant_id),
    )
    assert headers["Penstock-Notice-Id"] == sent["id"]
    assert await states(database, acme.tenant_id) == [("webhook", "delivered")]
    assert await deliver(database, SENDERS) == 0


async def test_kinds_choose_what_an_endpoint_gets(database: Database, receiver: Receiver) -> None:
    await hook(database, receiver, None, kinds=["test"])
    await tell(database, None, kind="drift")
    await admin_alerts.send_test(database, ADMIN, tenant_id=None)
    assert await deliver(database, SENDERS) == 1
    assert [json.loads(body)["kind"] for _, body in receiver.got] == ["test"]


@pytest.mark.parametrize("status", [302, 404, 500])
async def test_a_failure_is_tried_again_and_given_up(
    database: Database, receiver: Receiver, status: int
) -> None:
    acme = await make_organisation(database)
    await hook(database, receiver, acme.tenant_id)
    receiver.status = status
    await tell(database, acme.tenant_id)
    assert await deliver(database, SENDERS) == 0
    assert await deliver(database, SENDERS) == 0, "not due yet"
    assert len(receiver.got) == 1, "no redirect is followed"
    for _ in range(MAX_ATTEMPTS):
        await make_due(database)
        await deliver(database, SENDERS)
    assert len(receiver.got) == MAX_ATTEMPTS
    [notice] = await admin_alerts.list_notices(database, ADMIN, tenant_id=acme.tenant_id)
    assert notice.deliveries[0]["state"] == "failed"
    assert str(status) in notice.deliveries[0]["last_error"]


async def test_it_gets_through_when_the_receiver_is_back(database: Database, receiver: Receiver) -> None:
    acme = await make_organisation(database)
    await hook(database, receiver, acme.tenant_id)
    receiver.status = 503
    await tell(database, acme.tenant_id)
    await deliver(database, SENDERS)
    receiver.status = 200
    await make_due(database)
    assert await deliver(database, SENDERS) == 1
    assert await states(database, acme.tenant_id) == [("webhook", "delivered")]


async def test_a_removed_endpoint_gets_nothing_more(database: Database, receiver: Receiver) -> None:
    acme = await make_organisation(database)
    await hook(database, receiver, acme.tenant_id)
    receiver.status = 500
    await tell(database, acme.tenant_id)
    await deliver(database, SENDERS)
    [endpoint] = await admin_alerts.list_endpoints(database, ADMIN, tenant_id=acme.tenant_id)
    await admin_alerts.remove_endpoint(database, ADMIN, tenant_id=acme.tenant_id, endpoint_id=endpoint.id)
    with pytest.raises(NotFound):
        await admin_alerts.remove_endpoint(database, ADMIN, tenant_id=acme.tenant_id, endpoint_id=endpoint.id)
    await make_due(database)
    await deliver(database, SENDERS)
    assert len(receiver.got) == 1
    assert await states(database, acme.tenant_id) == [("webhook", "failed")]
    assert {"alert_endpoint.add", "alert_endpoint.remove"} <= set(await audit_actions(database))


@pytest.mark.promise(20)
async def test_a_name_that_resolves_to_the_inside_is_refused(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name was public when it was set and resolves to our own address now (DNS rebinding)."""
    port = int(receiver.url.rpartition(":")[2])
    inside = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async def resolve(*_: object, **__: object) -> list[Any]:
        return inside

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
    result = await webhooks.post(f"https://hooks.example.com:{port}/x", b"{}", {}, frozenset())
    assert result is not None
    assert "does not lead to the public internet" in result
    assert "127.0.0.1" not in result, "what names inside resolve to is not told"
    assert receiver.got == []
    for url in (receiver.url, "https://169.254.169.254/latest", "https://[::1]/x"):
        assert "address" in str(await webhooks.post(url, b"{}", {}, frozenset()))
    assert receiver.got == []


async def test_a_receiver_that_says_nothing_is_left_soon(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        assert "no answer" in str(await webhooks.post(url, b"{}", {}, LOOPBACK))


async def test_mail_goes_to_the_owners_through_smtp(
    database: Database, mail_server: tuple[Mailbox, SmtpServer]
) -> None:
    mailbox, smtp = mail_server
    acme = await make_organisation(database)
    for email, role in (("owner@acme.example", "tenant_owner"), ("dev@acme.example", "tenant_developer")):
        await admin_users.create_user(
            database,
            ADMIN,
            email=email,
            password="a long password",
            role=role,  # type: ignore[arg-type]
            tenant_id=acme.tenant_id,
        )
    await tell(database, acme.tenant_id, subject="80 % of the budget of Äcme is spent", body="Spent $8.\n")
    senders = DeliveryConfig(pepper=PEPPER, smtp=smtp, allow_hosts=frozenset())
    assert await deliver(database, senders) == 1
    [mail] = mailbox.mails
    assert mail["To"] == "owner@acme.example"
    assert mail["From"] == "billing@penstock.example"
    assert "Spent $8." in str(mail.get_payload())
    assert await deliver(database, senders) == 0


async def test_without_smtp_mail_waits_in_the_outbox(database: Database) -> None:
    acme = await make_organisation(database)
    await admin_alerts.add_endpoint(
        database,
        member(acme.tenant_id),
        tenant_id=acme.tenant_id,
        channel="email",
        target="Finance@Acme.example",
        pepper=PEPPER,
    )
    await tell(database, acme.tenant_id)
    assert await deliver(database, SENDERS) == 1
    [kept] = await admin_alerts.list_outbox(database, ADMIN)
    assert kept.deliveries[0]["target"] == "finance@acme.example"
    assert (kept.body, kept.deliveries[0]["state"]) == ("b", "outbox")
    with pytest.raises(PermissionDenied):
        await admin_alerts.list_outbox(database, member(acme.tenant_id))


async def test_mail_that_nobody_takes_stays(database: Database) -> None:
    acme = await make_organisation(database)
    await admin_alerts.add_endpoint(
        database, ADMIN, tenant_id=acme.tenant_id, channel="email", target="a@b.example", pepper=PEPPER
    )
    await tell(database, acme.tenant_id)
    away = DeliveryConfig(
        pepper=PEPPER, smtp=SmtpServer("127.0.0.1", free_port(), "x@y"), allow_hosts=frozenset()
    )
    assert await deliver(database, away) == 0
    assert await states(database, acme.tenant_id) == [("email", "pending")]


async def test_what_an_organisation_may_set(database: Database) -> None:
    acme, other = await make_organisation(database), await make_organisation(database, "Other")
    owner, viewer = member(acme.tenant_id), member(acme.tenant_id, "tenant_viewer")

    async def add(actor: Any, tenant_id: UUID | None, target: str, pepper: bytes = PEPPER) -> None:
        await admin_alerts.add_endpoint(
            database, actor, tenant_id=tenant_id, channel="webhook", target=target, pepper=pepper
        )

    good = "https://hooks.example.com/x"
    for actor, tenant_id in ((viewer, acme.tenant_id), (owner, other.tenant_id), (owner, None)):
        with pytest.raises(PermissionDenied):
            await add(actor, tenant_id, good)
    with pytest.raises(InvalidRequest):
        await add(owner, acme.tenant_id, "https://10.0.0.1/x")
    with pytest.raises(Unavailable):
        await add(owner, acme.tenant_id, good, b"")
    await add(owner, acme.tenant_id, good)
    with pytest.raises(Conflict):
        await add(owner, acme.tenant_id, good)
    for n in range(9):
        await add(owner, acme.tenant_id, f"{good}{n}")
    with pytest.raises(Conflict, match="remove one"):
        await add(owner, acme.tenant_id, f"{good}-more")
    assert len(await admin_alerts.list_endpoints(database, owner)) == 10
    assert await admin_alerts.list_endpoints(database, member(other.tenant_id)) == []
    with pytest.raises(PermissionDenied):
        await admin_alerts.list_notices(database, owner, tenant_id=other.tenant_id)


async def test_tests_are_no_way_to_flood_a_mailbox(database: Database) -> None:
    acme = await make_organisation(database)
    owner = member(acme.tenant_id)
    await admin_alerts.send_test(database, owner, tenant_id=acme.tenant_id)
    with pytest.raises(Conflict, match="minute"):
        await admin_alerts.send_test(database, owner, tenant_id=acme.tenant_id)
    await admin_alerts.send_test(database, ADMIN, tenant_id=None)


async def test_a_job_that_died_in_the_middle_lets_it_be_tried_again(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = await make_organisation(database)
    await hook(database, receiver, acme.tenant_id)
    await tell(database, acme.tenant_id)

    async def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("billing.notifications.delivery._record", die)
        with pytest.raises(KeyboardInterrupt):
            await deliver(database, SENDERS)
    await make_due(database)
    assert await deliver(database, SENDERS) == 1
    first, second = (json.loads(body)["id"] for _, body in receiver.got)
    assert first == second, "the receiver can tell the repetition"


async def test_a_delivery_that_breaks_takes_no_other_with_it(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = await make_organisation(database)
    await hook(database, receiver, acme.tenant_id)
    await tell(database, acme.tenant_id)

    def broken(*_: object) -> None:
        raise IndexError("an address that the library cannot read")

    monkeypatch.setattr(mail, "compose", broken)
    async with database.system() as connection:
        await connection.execute(
            text(
                "INSERT INTO notice_endpoints (id, tenant_id, channel, target, created_by) "
                "VALUES (gen_random_uuid(), :tenant, 'email', 'a@example.com', 'x')"
            ),
            {"tenant": acme.tenant_id},
        )
    senders = DeliveryConfig(
        pepper=PEPPER, smtp=SmtpServer("127.0.0.1", 1, "us@example.com"), allow_hosts=LOOPBACK
    )
    assert await deliver(database, senders) == 1
    assert sorted(await states(database, acme.tenant_id)) == [("email", "pending"), ("webhook", "delivered")]
