"""Monthly budgets of end users and tags stop requests, exactly, whatever becomes of the requests."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import msgspec
import pytest
from sqlalchemy import text

from admin import budgets as admin_budgets
from admin.actor import system_actor
from billing.ledger.verification import verify
from billing.metering import label_budgets
from billing.metering.holds import HoldManager
from billing.metering.label_budgets import EVERY_END_USER, label_of
from billing.metering.reaper import reap
from billing.metering.records import HoldGranted, Labels, Outcome, UsageRecord, label_lines
from billing.metering.scope_budgets import ScopeBudget, list_budgets
from billing.metering.settle_calls import SettleConnection
from billing.notifications.alerts import evaluate, list_rules
from core.clock import SystemClock
from core.db import Database
from core.errors import BudgetExceeded, Conflict, InvalidRequest
from core.tokens import TokenUsage
from jobs.retention import forget_end_users
from tests.integration.billing.support import Customer, make_customer, price

ADMIN = system_actor("test")
ADA, BOB = Labels("ada", {"tag_team": "blue"}), Labels("bob", {"tag_team": "blue"})


class Shop:
    """Places and settles requests of a customer for its end users. An output token costs a dollar."""

    def __init__(self, database: Database, customer: Customer, holds: list[HoldManager], pg_url: str) -> None:
        self.database, self.customer, self.holds = database, customer, holds
        self.pg_url = pg_url
        self.settling = SettleConnection(pg_url)

    async def budget(self, label: str, usd: str | None, *, stops: bool = True) -> list[ScopeBudget]:
        return await admin_budgets.set_label_budget(
            self.database, ADMIN, tenant_id=self.customer.tenant_id, label=label, usd=usd, stops=stops
        )

    async def place(self, labels: Labels | None, tokens: int, process: int = 0) -> HoldGranted:
        asked = self.customer.hold(input_tokens=0, output_tokens=tokens)
        return await self.holds[process].place(msgspec.structs.replace(asked, labels=label_lines(labels)))

    async def refusal(self, labels: Labels | None, tokens: int) -> BudgetExceeded:
        with pytest.raises(BudgetExceeded) as refused:
            await self.place(labels, tokens)
        return refused.value

    def ended(self, granted: HoldGranted, labels: Labels | None, tokens: int, **more: Any) -> UsageRecord:
        record = self.customer.ended(granted, TokenUsage(0, 0, tokens), **more)
        return msgspec.structs.replace(record, open=self.customer.open(granted, labels=labels))

    async def settle(self, records: Sequence[UsageRecord]) -> None:
        assert await self.settling.settle(list(records)) == set()

    async def use(self, labels: Labels | None, tokens: int) -> None:
        await self.settle([self.ended(await self.place(labels, tokens), labels, tokens)])

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        async with self.database.system() as connection:
            return [tuple(row) for row in await connection.execute(text(query))]

    async def counted(self) -> dict[str, tuple[int, int]]:
        """Dollars spent and held, by label."""
        found = await self.rows("SELECT label, spent_month, held FROM scope_budgets WHERE label IS NOT NULL")
        return {label: (int(spent) // 10**12, int(held) // 10**12) for label, spent, held in found}

    async def change(self, *statements: str) -> None:
        """Change tables as their owner, as no function does."""
        connection = await asyncpg.connect(self.pg_url)
        async with connection.transaction():
            for statement in statements:
                await connection.execute(statement)
        await connection.close()

    async def problems(self) -> list[str]:
        async with self.database.system() as connection:
            return (await verify(connection)).problems


@pytest.fixture
async def shop(database: Database, pg_url: str) -> AsyncIterator[Shop]:
    await price(database, input="0", cached_input="0", output="1000000", reasoning="1000000")
    holds = [HoldManager(pg_url, f"api-{n}", ttl_s=60, clock=SystemClock(), timeout_s=30.0) for n in range(2)]
    for manager in holds:
        await manager.start()
    shop = Shop(database, await make_customer(database, "100000"), holds, pg_url)
    yield shop
    await shop.settling.close()
    for manager in holds:
        await manager.close()
    assert await shop.problems() == []


@pytest.mark.parametrize(
    "label", [label_of("end_user", "ada"), label_of("tag", "tag_team=blue"), EVERY_END_USER]
)
async def test_two_hundred_at_once_never_exceed_the_budget(shop: Shop, label: str) -> None:
    await shop.budget(label, "80.50")
    found = await asyncio.gather(*(shop.place(ADA, 8, n % 2) for n in range(200)), return_exceptions=True)
    refused = [one for one in found if isinstance(one, BudgetExceeded)]
    assert (len(refused), sum(isinstance(one, HoldGranted) for one in found)) == (190, 10)
    if label.startswith("user"):
        assert "the monthly budget of the end user 'ada' does not cover" in refused[0].message
        assert (refused[0].details["budget_scope"], refused[0].details["end_user"]) == ("end_user", "ada")
    else:
        assert "the monthly budget of the tag tag_team with the value 'blue'" in refused[0].message
        assert (refused[0].details["budget_scope"], refused[0].details["tag"]) == ("tag", "tag_team=blue")


async def test_every_end_user_has_the_default_separately_unless_it_has_its_own(shop: Shop) -> None:
    await shop.budget(EVERY_END_USER, "10")
    await shop.budget(label_of("end_user", "bob"), "30")
    await shop.place(ADA, 10)
    await shop.place(BOB, 30)
    await shop.place(Labels("eve"), 10)
    for labels in (ADA, BOB, Labels("eve")):
        assert (await shop.refusal(labels, 1)).details["end_user"] == labels.end_user
    await shop.place(None, 50)
    await shop.place(Labels("", {"tag_team": "blue"}), 50)
    await shop.budget(label_of("end_user", "bob"), None)  # bob has that of every end user again
    assert (await shop.refusal(BOB, 1)).details["balance_usd"] == "10.00"
    await shop.budget(EVERY_END_USER, "40")
    await shop.place(BOB, 10)
    await shop.budget(EVERY_END_USER, None)
    await shop.place(ADA, 500)
    assert await shop.counted() == {}


async def test_a_new_budget_counts_what_is_spent_and_held(shop: Shop) -> None:
    await shop.use(ADA, 5)
    first = await shop.place(ADA, 7)
    await shop.budget(EVERY_END_USER, "20")
    await shop.budget(label_of("tag", "tag_team=blue"), "19")
    assert await shop.counted() == {"user=ada": (5, 7), "tag_team=blue": (5, 7)}
    assert (await shop.refusal(ADA, 8)).details["tag"] == "tag_team=blue"
    assert not await shop.holds[0].extend(first.request_id, 8)
    assert await shop.holds[0].extend(first.request_id, 7)
    assert await shop.counted() == {"user=ada": (5, 14), "tag_team=blue": (5, 14)}
    await shop.settle([shop.ended(first, ADA, 9)])
    assert await shop.counted() == {"user=ada": (14, 0), "tag_team=blue": (14, 0)}


async def test_every_end_of_a_request_keeps_the_counts_right(shop: Shop) -> None:
    await shop.budget(EVERY_END_USER, "100")
    await shop.budget(label_of("tag", "tag_team=blue"), "100", stops=False)
    one, two, three, four = [await shop.place(ADA, 8) for _ in range(4)]
    shop.holds[0].void(one.request_id)
    interrupted = shop.ended(two, ADA, 3, outcome=Outcome.INTERRUPTED)
    await shop.settle([interrupted, interrupted])
    await shop.settle([interrupted, shop.ended(three, ADA, 8, outcome=Outcome.ENGINE_FAILED)])
    shop.holds[0].stop_renewing([four.request_id])
    await shop.change("UPDATE holds SET renewed_at = renewed_at - interval '1 hour'")
    async with shop.database.system() as connection:
        await reap(connection, 60, gap_s=3600)
    assert await shop.counted() == {"user=ada": (3, 0), "tag_team=blue": (3, 0)}
    await shop.settle([shop.ended(four, ADA, 8)])  # after its hold has expired
    assert await shop.counted() == {"user=ada": (11, 0), "tag_team=blue": (11, 0)}


async def test_what_a_lost_hold_has_spent_is_counted(shop: Shop) -> None:
    await shop.budget(EVERY_END_USER, "10")
    granted = await shop.place(ADA, 8)
    lost = shop.ended(granted, ADA, 8)
    await shop.change(  # as a crash of PostgreSQL leaves it
        "DELETE FROM holds",
        "DELETE FROM scope_budgets",
        "UPDATE billing_accounts SET held = 0, open_holds = 0",
    )
    await shop.settle([lost])
    assert await shop.counted() == {"user=ada": (8, 0)}
    assert (await shop.refusal(ADA, 3)).details["balance_usd"] == "2.00"


async def test_a_month_begins_anew_and_forgets_end_users_who_have_gone(shop: Shop) -> None:
    await shop.budget(EVERY_END_USER, "10")
    await shop.use(ADA, 10)
    await shop.use(BOB, 10)
    assert (await shop.refusal(ADA, 1)).details["balance_usd"] == "0.00"
    await shop.change(  # as if it had been a month ago
        "UPDATE scope_budgets SET month = month - interval '1 month'",
        "UPDATE usage_labels SET ended_at = ended_at - interval '32 days'",
    )
    held = await shop.place(ADA, 10)
    assert await forget_end_users(shop.database) == 1
    assert set(await shop.counted()) == {"user=ada"}
    await shop.settle([shop.ended(held, ADA, 4)])
    assert await shop.counted() == {"user=ada": (4, 0)}


async def test_a_watched_budget_sends_notices_and_stops_nothing(shop: Shop) -> None:
    await shop.budget(label_of("end_user", "ada"), "10", stops=False)
    await shop.use(ADA, 30)
    await shop.use(ADA, 30)
    assert await evaluate(shop.database) == 1
    [(subject, body)] = await shop.rows("SELECT subject, body FROM notices")
    assert subject == "100 % of the budget of the end user ada is spent"
    assert "has spent $60.00 of its budget of $10.00" in body
    assert "Requests go on" in body
    assert await evaluate(shop.database) == 0
    async with shop.database.system() as connection:
        [rule] = await list_rules(connection, shop.customer.tenant_id)
    assert (rule.scope, rule.label, rule.current_usd, rule.fired) == (
        "end_user",
        "user=ada",
        "60.00",
        [50, 80, 100],
    )
    with pytest.raises(InvalidRequest):
        await shop.budget(EVERY_END_USER, "10", stops=False)


async def test_a_value_with_a_budget_keeps_its_line_beyond_the_cap(shop: Shop) -> None:
    await shop.change(
        "INSERT INTO label_values (tenant_id, month, name, value) "
        "SELECT id, date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date, 'user', 'u' || n "
        "FROM tenants, generate_series(1, 10000) n"
    )
    await shop.budget(label_of("end_user", "ada"), "10")
    await shop.use(ADA, 6)
    await shop.use(BOB, 6)
    values = await shop.rows(
        "SELECT v.value FROM usage_labels l JOIN label_values v ON v.id = l.user_value ORDER BY l.request_id"
    )
    assert values == [("ada",), ("(other)",)]
    assert await shop.counted() == {"user=ada": (6, 0)}


async def test_the_number_of_budgets_and_of_counted_end_users_is_capped(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_budgets, "MAX_BUDGETS", 1)
    await shop.budget(label_of("end_user", "ada"), "10")
    with pytest.raises(Conflict):
        await shop.budget(label_of("end_user", "bob"), "10")
    await shop.budget(EVERY_END_USER, "10")
    await shop.change(
        "INSERT INTO scope_budgets (scope_id, tenant_id, scope, label, month) "
        "SELECT gen_random_uuid(), id, 'end_user', 'user=u' || n, current_date "
        "FROM tenants, generate_series(1, 100000) n"
    )
    await shop.place(ADA, 8)
    assert "at most 100,000 end users" in (await shop.refusal(BOB, 1)).message
    await shop.place(None, 8)


async def test_verification_finds_a_count_that_is_wrong(shop: Shop) -> None:
    await shop.budget(EVERY_END_USER, "100")
    await shop.use(ADA, 8)
    await shop.place(ADA, 8)

    await shop.change("UPDATE scope_budgets SET spent_month = spent_month + 1")
    [problem] = await shop.problems()
    assert problem.startswith("what a budget of an end user or tag counts differs from the usage rows")
    await shop.change("UPDATE scope_budgets SET spent_month = spent_month - 1, held = held + 1")
    [problem] = await shop.problems()
    assert problem.startswith("money held of a budget differs from the open holds")
    await shop.change("UPDATE scope_budgets SET held = held - 1")


async def test_an_organisation_has_its_own_budgets_only(shop: Shop, database: Database) -> None:
    other = await make_customer(database, "1000", name="Other")
    await shop.budget(label_of("end_user", "ada"), "0")
    asked = msgspec.structs.replace(other.hold(input_tokens=0, output_tokens=8), labels=label_lines(ADA))
    assert isinstance(await shop.holds[0].place(asked), HoldGranted)
    async with database.tenant(other.tenant_id) as connection:
        assert await list_budgets(connection, shop.customer.tenant_id) == []


@pytest.mark.parametrize(
    ("scope", "name"),
    [("end_user", ""), ("end_user", "a\nb"), ("end_user", "a" * 129), ("tag", "team=x"), ("tag", "tag_t=")],
)
def test_a_name_that_no_request_can_have_is_refused(scope: Any, name: str) -> None:
    with pytest.raises(InvalidRequest):
        label_of(scope, name)
