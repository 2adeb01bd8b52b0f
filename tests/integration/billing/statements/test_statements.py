"""Statements against the ledger, over closed months; receipts; what tenants may see; offline checks."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pypdf import PdfReader
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from admin import alerts as admin_alerts
from admin import statements as admin_statements
from billing.ledger import credits
from billing.ledger.adjustments import adjust
from billing.metering.records import Outcome
from billing.statements import body as bodies
from billing.statements import issue
from billing.statements.issue import issue_closed
from billing.statements.signing import load_signer
from billing.statements.verify import verify, verify_pair
from billing.usage.rollups import roll_up
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from core.ids import uuid7
from core.money import pico_to_usd, usd_to_pico
from core.settings import Settings
from core.tokens import TokenUsage
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.spending import settle_one
from tests.integration.billing.support import Customer, make_customer, price
from tests.support.closing import close_month
from tests.support.tenancy import ADMIN, member


@pytest.fixture
async def platform(pg_url: str) -> AsyncIterator[Platform]:
    platform = await Platform.begin(pg_url)
    yield platform
    await platform.database.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_construct(data_dir=tmp_path)


async def known(database: Database) -> dict[str, bytes]:
    return {key.key_id: bytes.fromhex(key.public_key) for key in await admin_statements.public_keys(database)}


async def told(platform: Platform, settings: Settings, customer: Customer, **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"tenant_id": customer.tenant_id, "month": platform.month, **changes}
    made = await admin_statements.get_statement(platform.database, ADMIN, settings=settings, **facts)
    found = verify_pair(made.document, made.pdf, await known(platform.database)).body
    assert found is not None
    return found


async def ledger_says(database: Database, customer: Customer, code: str) -> str:
    """The balance of the account `code`, with the statement's sign."""
    async with database.read() as connection:
        found = await connection.scalar(
            text("SELECT debit - credit FROM ledger_balances WHERE tenant_id = :tenant AND code = :code"),
            {"tenant": customer.tenant_id, "code": code},
        )
    return pico_to_usd(bodies.ACCOUNTS[code] * int(found or 0))


async def test_a_draft_equals_the_ledger(platform: Platform, settings: Settings) -> None:
    database = platform.database
    await price(database)
    acme = await make_customer(database, "1")
    other = await make_customer(database, "1", name="Other")
    await price(
        database, tenant_id=acme.tenant_id, input="0.5", cached_input="0.05", output="5", reasoning="5"
    )
    for input_, cached, output in ((1000, 100, 3), (10, 0, 0), (7, 7, 9_999)):
        await platform.use(acme, input=input_, cached=cached, output=output)
    await platform.use(other, input=123)
    await platform.use(acme, input=50, output=9, outcome="engine_failed")
    found = await told(platform, settings, acme)
    assert (found["final"], found["month"]) == (False, f"{platform.month:%Y-%m}")
    cost = 910 * 500_000 + 107 * 50_000 + 10_002 * 5_000_000
    assert found["totals"]["cost_usd"] == pico_to_usd(cost)
    assert found["totals"]["list_cost_usd"] == pico_to_usd(2 * cost)
    assert found["totals"]["discount_usd"] == pico_to_usd(cost)
    assert found["totals"]["requests"] == "4"
    credit = found["accounts"]["credit"]
    assert credit["closing_usd"] == await ledger_says(database, acme, "credit")
    assert {m["kind"]: m["amount_usd"] for m in credit["movements"]}["usage"] == pico_to_usd(-cost)
    assert sum(usd_to_pico(lot["remaining_usd"]) for lot in found["lots"]["open"]) == usd_to_pico(
        credit["closing_usd"]
    ), "use that no lot was asked for yet is taken off"
    [line] = found["usage"]
    assert sum(usd_to_pico(one["cost_usd"]) for one in line["classes"]) == cost
    async with database.read() as connection:
        kept = await connection.scalar(text("SELECT count(*) FROM statements"))
    assert kept == 0, "drafts are not kept"


@pytest.mark.parametrize("mode", ["prepaid", "postpaid"])
async def test_closed_months_have_final_statements_that_follow_one_another(
    platform: Platform, settings: Settings, mode: str
) -> None:
    database = platform.database
    await price(database)
    acme = await make_customer(database, "5", mode=mode)
    await platform.use(acme, input=1_000_000)
    async with database.system() as connection:
        await adjust(
            connection,
            adjustment_id=uuid7(),
            tenant_id=acme.tenant_id,
            amount=usd_to_pico("0.25"),
            reason="slow answers",
            created_by="ann",
        )
    first = platform.month
    await platform.end_month()
    await close_month(database, first, by="fin")
    await platform.use(acme, output=10_000)
    made = await asyncio.gather(*(issue_closed(database, lambda: load_signer(settings)) for _ in range(3)))
    assert sum(made) >= 1
    assert await issue_closed(database, lambda: load_signer(settings)) == 0
    [view] = await admin_statements.list_statements(
        database, member(acme.tenant_id), tenant_id=acme.tenant_id
    )
    assert (view.month, view.revision) == (f"{first:%Y-%m}", 1)
    found = await told(platform, settings, acme, month=first)
    assert found["final"]
    assert found["totals"]["cost_usd"] == "1.00"
    assert [one["amount_usd"] for one in found["adjustments"]] == ["0.25"]
    invoice = found["invoice"]
    assert sum(usd_to_pico(line["exact_usd"]) for line in invoice["lines"]) == usd_to_pico(
        invoice["exact_usd"]
    )
    again = await told(platform, settings, acme, month=first, again=True)
    assert again == found, "nothing changed, so there is no new revision"
    notices = await admin_alerts.list_notices(database, ADMIN, tenant_id=acme.tenant_id)
    assert [n.kind for n in notices].count("statement.issued") == 1

    second = await told(platform, settings, acme, month=(await platform.clock.now()).date().replace(day=1))
    for code in bodies.ACCOUNTS:
        assert second["accounts"][code]["opening_usd"] == found["accounts"][code]["closing_usd"]
        assert second["accounts"][code]["closing_usd"] == await ledger_says(database, acme, code)


@pytest.mark.parametrize("error", [Conflict("usage and ledger differ"), ValueError("unreadable")])
async def test_statements_that_always_fail_do_not_starve_the_rest(
    platform: Platform, settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    database = platform.database
    made = [await make_customer(database, "1", name=f"Customer {number}") for number in range(5)]
    customers = sorted(one.tenant_id for one in made)
    await platform.end_month()
    await close_month(database, platform.month, by="fin")
    issuing = issue.statement_body

    async def failing(connection: AsyncConnection, tenant_id: UUID, *args: Any, **facts: Any) -> Any:
        if tenant_id in customers[:3]:
            raise error
        return await issuing(connection, tenant_id, *args, **facts)

    monkeypatch.setattr(issue, "statement_body", failing)
    seen = nullcontext() if isinstance(error, Conflict) else pytest.raises(ValueError, match="unreadable")
    with seen:
        assert await issue_closed(database, lambda: load_signer(settings), batch=2) == 2
    async with database.read() as connection:
        rows = await connection.execute(text("SELECT tenant_id FROM statements ORDER BY tenant_id"))
        assert list(rows.scalars()) == customers[3:]


async def test_the_opening_balance_without_a_statement_is_the_same(
    platform: Platform, settings: Settings
) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, "5")
    await platform.use(acme, input=1_000_000)
    first = platform.month
    await platform.end_month()
    await close_month(platform.database, first, by="fin")
    now = (await platform.clock.now()).date().replace(day=1)
    before = await told(platform, settings, acme, month=now)
    await issue_closed(platform.database, lambda: load_signer(settings))
    after = await told(platform, settings, acme, month=now)
    assert after["accounts"] == before["accounts"]
    assert after["accounts"]["credit"]["opening_usd"] == "4.00"


async def test_nothing_is_signed_while_usage_and_ledger_differ(
    platform: Platform, settings: Settings
) -> None:
    database = platform.database
    await price(database)
    acme = await make_customer(database, "5")
    await platform.use(acme, input=1_000)
    await roll_up(database)
    async with database.engine.begin() as connection:  # as the owner: no role may
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        await connection.execute(text("UPDATE ledger_transfers SET amount = amount + 1 WHERE kind = 'usage'"))
    with pytest.raises(Conflict, match="no statement is signed"):
        await told(platform, settings, acme)


async def test_who_may_have_a_statement(platform: Platform, settings: Settings) -> None:
    database = platform.database
    acme, other = await make_customer(database, "1"), await make_customer(database, "1", name="Other")
    for role in ("tenant_owner", "tenant_developer", "tenant_viewer"):
        actor = member(acme.tenant_id, role)  # type: ignore[arg-type]
        made = await admin_statements.get_statement(
            database, actor, settings=settings, tenant_id=acme.tenant_id, month=platform.month
        )
        assert not made.final
        with pytest.raises(PermissionDenied):
            await admin_statements.get_statement(
                database, actor, settings=settings, tenant_id=other.tenant_id, month=platform.month
            )
        with pytest.raises(PermissionDenied):
            await admin_statements.get_statement(
                database, actor, settings=settings, tenant_id=acme.tenant_id, month=platform.month, again=True
            )
        with pytest.raises(PermissionDenied):
            await admin_statements.rotate_key(database, actor, settings=settings, reason="r")
        with pytest.raises(PermissionDenied):
            await admin_statements.run_sla(database, actor, month=platform.month)
    later = platform.month.replace(year=platform.month.year + 1)
    with pytest.raises(NotFound, match="has not begun"):
        await told(platform, settings, acme, month=later)
    with pytest.raises(NotFound):
        await told(platform, settings, Customer())


async def test_a_receipt_traces_the_request(database: Database, settings: Settings) -> None:
    await price(database)
    acme, other = await make_customer(database, "1"), await make_customer(database, "1", name="Other")
    usage = TokenUsage(input=100, cached_input=40, output=50, reasoning=20)
    request = await settle_one(database, acme, usage)

    async def receipt(tenant_id: UUID, request_id: UUID) -> bytes:
        return await admin_statements.signed_receipt(
            database, settings=settings, tenant_id=tenant_id, request_id=request_id
        )

    paper = await receipt(acme.tenant_id, request)
    found = verify(paper, await known(database)).body
    assert found is not None
    cost = 60 * 10**6 + 40 * 10**5 + 30 * 10**7 + 20 * 2 * 10**7
    assert found["cost_usd"] == pico_to_usd(cost)
    assert sum(usd_to_pico(one["cost_usd"]) for one in found["classes"]) == cost
    [booking] = found["ledger"]
    assert (booking["amount_usd"], booking["debit"], booking["seal"]) == (pico_to_usd(cost), "credit", None)
    assert found["key_last4"] == "abcd"
    assert "40 of 100 input tokens were cached" in found["why"]
    async with database.system() as connection:
        await connection.execute(text("SELECT penstock_seal(100)"))
    sealed = json.loads(await receipt(acme.tenant_id, request))["body"]["ledger"]
    assert sealed[0]["seal"] == "1"
    for tenant_id, request_id in (
        (other.tenant_id, request),
        (acme.tenant_id, uuid7()),
        (acme.tenant_id, UUID(int=0)),
    ):
        with pytest.raises(NotFound):
            await receipt(tenant_id, request_id)
    dearer = paper.replace(b'"40"', b'"41"')
    with pytest.raises(InvalidRequest, match="NOT VALID"):
        verify(dearer, await known(database))


async def test_what_failed_costs_nothing_and_says_why(database: Database, settings: Settings) -> None:
    await price(database)
    acme = await make_customer(database, "1")
    request = await settle_one(database, acme, TokenUsage(input=9, output=1), Outcome.ENGINE_FAILED)
    paper = await admin_statements.get_receipt(
        database, member(acme.tenant_id), settings=settings, tenant_id=acme.tenant_id, request_id=request
    )
    found = json.loads(paper)["body"]
    assert (found["cost_usd"], found["ledger"]) == ("0.00", [])
    assert {one["cost_usd"] for one in found["classes"]} == {"0.00"}
    assert "costs nothing" in found["why"]


async def test_keys_rotate_and_old_papers_still_verify(database: Database, settings: Settings) -> None:
    await price(database)
    acme = await make_customer(database, "1")
    request = await settle_one(database, acme, TokenUsage(input=1))

    async def receipt() -> bytes:
        return await admin_statements.signed_receipt(
            database, settings=settings, tenant_id=acme.tenant_id, request_id=request
        )

    old = await receipt()
    keys = await admin_statements.rotate_key(database, ADMIN, settings=settings, reason="yearly")
    assert [key.retired_at is None for key in keys] == [False, True]
    new = await receipt()
    published = await known(database)
    assert verify(old, published).key_id == keys[0].key_id
    assert verify(new, published).key_id == keys[1].key_id
    await admin_statements.retire_key(database, ADMIN, key_id=keys[1].key_id, reason="it leaked")
    with pytest.raises(Conflict, match="retired"):
        await receipt()


async def test_lots_and_payments_are_on_it(platform: Platform, settings: Settings) -> None:
    database = platform.database
    acme = await make_customer(database)
    async with database.system() as connection:
        for kind, usd in (("purchased", "20"), ("promotional", "5")):
            await credits.add_lot(
                connection,
                lot_id=uuid7(),
                tenant_id=acme.tenant_id,
                amount=usd_to_pico(usd),
                kind=kind,  # type: ignore[arg-type]
                reason="r",
                created_by="t",
            )
    found = await told(platform, settings, acme)
    assert {lot["kind"]: lot["remaining_usd"] for lot in found["lots"]["open"]} == {
        "purchased": "20.00",
        "promotional": "5.00",
    }
    assert [(one["kind"], one["amount_usd"]) for one in found["payments"]] == [("purchase", "20.00")]
    made = await admin_statements.get_statement(
        database, ADMIN, settings=settings, tenant_id=acme.tenant_id, month=platform.month
    )
    shown = "".join(page.extract_text() for page in PdfReader(io.BytesIO(made.pdf)).pages)
    assert "Credit bought" in shown
    assert "25.00" in shown
