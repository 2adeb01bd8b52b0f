"""The audit of `make chaos` on real books: sound ones pass, and each way of breaking them is found by its check."""

import json
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from bench.chaos.books import Audit, Books
from bench.chaos.journal import Entry, Journal
from bench.chaos.sums import EMPTY
from billing.metering.holds import HoldManager
from billing.metering.records import Outcome
from billing.metering.settle_calls import settle_row
from core.clock import SystemClock
from core.db import Database, connect_system
from core.tokens import TokenUsage
from tests.integration.billing.support import Customer, make_customer, price

PROMPT = 10
MADE = ((Outcome.COMPLETED, 40), (Outcome.LENGTH, 100), (Outcome.ENGINE_FAILED, 7), (Outcome.INTERRUPTED, 30))
"""Requests by outcome and output tokens; the client received them all, and the engines wrote them down."""


@dataclass
class Played:
    """Books with four requests of one organisation, the journal of its client and the log of the engines."""

    url: str
    customer: Customer
    requests: list[UUID]
    journal: Journal
    log: Path

    async def execute(self, sql: str) -> None:
        """Change the books as the owner of the tables, where no role could."""
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    async def audit(self) -> Audit:
        return await Books(self.url, self.log, self.journal).audit()

    async def found(self) -> set[str]:
        return {violation.check for violation in (await self.audit()).violations}


@pytest.fixture
async def played(pg_url: str, database: Database, tmp_path: Path) -> Played:
    await price(database)
    customer = await make_customer(database, "10")
    manager = HoldManager(pg_url, "api", ttl_s=60, clock=SystemClock(), timeout_s=30.0)
    await manager.start()
    granted = [await manager.place(customer.hold(input_tokens=PROMPT)) for _ in MADE]
    await manager.close()
    hot = await connect_system(pg_url)
    ends = [
        customer.ended(one, TokenUsage(input=PROMPT, output=output), outcome)
        for one, (outcome, output) in zip(granted, MADE, strict=True)
    ]
    await hot.fetch("SELECT * FROM penstock_settle($1)", [settle_row(one) for one in ends])
    await hot.close()
    journal, lines = Journal(deaths=[9.0]), []
    for number, (one, (outcome, output)) in enumerate(zip(granted, MADE, strict=True)):
        entry = Entry(number, str(customer.tenant_id), "stream", PROMPT, 100, 0.0, ended_at=9.0, status=200)
        entry.request_id = str(one.request_id)
        entry.deliver(5.0, output)
        if outcome in (Outcome.COMPLETED, Outcome.LENGTH):
            entry.finished, entry.claimed = True, (PROMPT, output)
        journal.entries.append(entry)
        lines += [{"request_id": entry.request_id}, {"request_id": entry.request_id, "generated": output}]
    log = tmp_path / "engines.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Played(pg_url, customer, [one.request_id for one in granted], journal, log)


async def test_sound_books_pass_and_the_sums_come_from_their_own_sources(played: Played) -> None:
    audit = await played.audit()
    assert audit.violations == []
    assert (audit.rows, audit.compared) == (4, 4)
    assert (audit.delivered, audit.billed, audit.forgiven, audit.lost) == (177, 170, 7, 0)
    played.journal.entries[3].deliver(
        8.9, 5
    )  # received in the last second of a killed process, and in no row
    again = await played.audit()
    assert again.violations == []
    assert (again.delivered, again.billed, again.forgiven, again.lost) == (182, 170, 7, 5)


_TWICE = "INSERT INTO ledger_transfers (tenant_id, kind, debit_account, credit_account, amount, source_id) "
_FIRST = "(SELECT min(request_id::text)::uuid FROM usage_rows)"
BROKEN = {
    "no hold is left": "UPDATE holds SET state = 'open' WHERE request_id = " + _FIRST,
    "no money is held, none is below zero": "UPDATE billing_accounts SET held = 1",
    "one row per request": "ALTER TABLE usage_rows DROP CONSTRAINT pk_usage_rows; "
    f"INSERT INTO usage_rows SELECT * FROM usage_rows WHERE request_id = {_FIRST}",
    "a row costs what its tokens cost": f"UPDATE usage_rows SET cost = cost + 1 WHERE request_id = {_FIRST}",
    "the ledger charges what a row costs": f"{_TWICE} SELECT tenant_id, 'adjustment', debit_account, credit_account, "
    f"amount, source_id FROM ledger_transfers WHERE source_id = {_FIRST}",
    "the budget counts each row once": "UPDATE billing_accounts SET spent_month = 2 * spent_month",
    "nothing is parked": "INSERT INTO settle_errors (request_id, reason, record) "
    "SELECT request_id, 'r', '' FROM usage_rows LIMIT 1",
    "the ledger sums to zero": "DELETE FROM ledger_accounts WHERE code = 'revenue'",
    "credit granted is credit used and left": "UPDATE billing_accounts SET balance = balance - 1",
}
"""For each query that must return no row, a change of the books after which it returns one."""


@pytest.mark.parametrize("check", EMPTY)
async def test_each_query_finds_books_that_are_broken(played: Played, check: str) -> None:
    await played.execute(f"SET session_replication_role = replica; {BROKEN[check]}")
    assert check in await played.found()


@pytest.mark.parametrize(
    ("sql", "checks"),
    [
        pytest.param(
            "ALTER TABLE ledger_transfers DROP CONSTRAINT uq_ledger_transfers_source_id_kind; "
            f"{_TWICE} SELECT tenant_id, kind, debit_account, credit_account, amount, source_id "
            f"FROM ledger_transfers WHERE source_id = {_FIRST}",
            {"the ledger charges what a row costs"},
            id="two settlements in the ledger",
        ),
        pytest.param(
            f"{_TWICE} SELECT tenant_id, 'uncollectible', debit_account, credit_account, amount, source_id "
            f"FROM ledger_transfers WHERE source_id = {_FIRST}",
            {"the ledger charges what a row costs"},
            id="and once more as uncollectible",
        ),
        pytest.param(
            f"{_TWICE} SELECT tenant_id, kind, debit_account, credit_account, amount, gen_random_uuid() "
            f"FROM ledger_transfers WHERE source_id = {_FIRST}",
            {"the ledger charges what a row costs"},
            id="and once more for a request without a row",
        ),
        pytest.param(
            f"DELETE FROM ledger_transfers WHERE source_id = {_FIRST}",
            {"the ledger charges what a row costs"},
            id="not in the ledger",
        ),
        pytest.param(
            "UPDATE billing_accounts SET balance = balance - (SELECT max(cost) FROM usage_rows)",
            {"credit granted is credit used and left"},
            id="taken twice from the balance only",
        ),
        pytest.param(
            "INSERT INTO usage_rows SELECT (jsonb_populate_record(u, jsonb_build_object('request_id', "
            "penstock_uuid_floor(now())))).* FROM usage_rows u ORDER BY request_id LIMIT 1",
            {"nothing invented", "billed <= generated", "the ledger charges what a row costs"},
            id="a row of no request",
        ),
        pytest.param(
            f"UPDATE usage_rows SET output_tokens = output_tokens + 1 WHERE request_id = {_FIRST}",
            {
                "billed <= generated",
                "a whole answer is billed as delivered",
                "a row costs what its tokens cost",
            },
            id="a token too many",
        ),
        pytest.param(
            f"UPDATE usage_rows SET output_tokens = output_tokens - 1 WHERE request_id = {_FIRST}",
            {"delivered <= billed", "a row costs what its tokens cost"},
            id="a token too few",
        ),
        pytest.param(
            "UPDATE usage_rows SET cost = 5 WHERE outcome = 'engine_failed'",
            {"failures cost nothing", "a row costs what its tokens cost"},
            id="a failure that costs",
        ),
        pytest.param(
            f"DELETE FROM usage_rows WHERE request_id = {_FIRST}",
            {"one row per admitted request", "the ledger charges what a row costs"},
            id="no row",
        ),
    ],
)
async def test_what_a_wrong_charge_looks_like(played: Played, sql: str, checks: set[str]) -> None:
    await played.execute(f"SET session_replication_role = replica; {sql}")
    assert checks <= await played.found()


async def test_an_engine_that_generated_less_than_is_billed_is_found(played: Played) -> None:
    played.log.write_text(played.log.read_text().replace('"generated": 30', '"generated": 29'))
    [violation] = (await played.audit()).violations
    assert (violation.check, violation.detail) == ("billed <= generated", "billed 30, generated 29")
    assert violation.request_id == str(played.requests[3])


async def test_a_client_that_received_more_than_is_billed_is_found(played: Played) -> None:
    played.journal.entries[3].arrivals = [(5.0, 35)]  # long before its process was killed
    played.journal.entries[3].tokens = 35
    [violation] = (await played.audit()).violations
    assert (violation.check, violation.request_id) == ("delivered <= billed", str(played.requests[3]))
