"""Checkpoints of the ledger: what they cover is not read again for a close, and is still verified in turns."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from billing.close.periods import checklist
from billing.ledger import checkpoints
from billing.ledger.invariants import BOOK_CHECKS, FRESH_CHECKS, HOLD_CHECKS
from billing.ledger.months import bounds, next_month
from billing.ledger.transfers import seal
from billing.ledger.verification import verify
from billing.reports.money_health import money_health
from billing.usage import rollups
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import Customer, make_customer, price
from tests.support.closing import close_month
from tests.support.waiting import until


@pytest.fixture
async def platform(pg_url: str):  # type: ignore[no-untyped-def]
    """A platform with a customer's price; its clock stands in the middle of a month."""
    platform = await Platform.begin(pg_url)
    await price(platform.database)
    yield platform
    await platform.database.close()


async def used(platform: Platform, times: int) -> Customer:
    """A customer with requests, sealed in links of one statement each."""
    acme = await make_customer(platform.database, mode="postpaid")
    for _ in range(times):
        await platform.use(acme, input=1_000_000)
        await sealed(platform)
    return acme


async def sealed(platform: Platform) -> None:
    async with platform.database.system() as connection:
        await seal(connection)


async def harm(platform: Platform, *statements: str) -> None:
    """Change what no role may change."""
    async with platform.database.engine.begin() as owner:
        await owner.execute(text("SET LOCAL session_replication_role = replica"))
        for statement in statements:
            await owner.execute(text(statement))


async def recent(platform: Platform) -> checkpoints.RecentVerification:
    async with platform.database.read() as connection:
        return await checkpoints.verify_recent(connection)


async def test_a_checkpoint_moves_over_sound_links_and_keeps_the_sums(platform: Platform) -> None:
    acme = await used(platform, 3)
    assert (await recent(platform)).fresh == 3
    assert await checkpoints.advance(platform.database) == 3
    await platform.use(acme, input=1_000_000)
    await sealed(platform)
    await platform.use(acme, input=1_000_000)
    found = await recent(platform)
    assert (found.covered, found.fresh, found.problems) == (3, 1, [])
    assert await checkpoints.advance(platform.database) == 1
    assert await checkpoints.advance(platform.database) == 0
    rows = await platform.rows(
        "SELECT a.code, sum(m.debit) AS debit, sum(m.credit) AS credit FROM penstock_ledger_sums() m "
        "JOIN ledger_accounts a ON a.id = m.account GROUP BY a.code ORDER BY a.code"
    )
    whole = await platform.rows("SELECT code, debit, credit FROM ledger_balances ORDER BY code")
    assert [tuple(row) for row in rows] == [tuple(row) for row in whole]
    await platform.is_sound()


_RETURNED = (
    "SELECT pg_stat_get_xact_tuples_returned(c.oid) + (SELECT sum(pg_stat_get_xact_tuples_returned(i.indexrelid)) "
    "FROM pg_index i WHERE i.indrelid = c.oid) FROM pg_class c WHERE c.oid = 'ledger_transfers'::regclass"
)
"""Entries of the ledger and of its indexes that this session has read since its statistics were last sent."""


async def test_covered_transfers_are_not_read_for_a_checklist(platform: Platform) -> None:
    """The checklist reads as much of the ledger after thirty requests as after three, once a checkpoint covers them."""

    async def read(times: int) -> dict[str, int]:
        """Transfers that each check reads, by table and index."""
        await used(platform, times)
        await checkpoints.advance(platform.database)
        found = {}
        for name, query in (FRESH_CHECKS | HOLD_CHECKS | BOOK_CHECKS).items():
            async with platform.database.read() as connection:
                await connection.execute(text("SET LOCAL enable_seqscan = off"))  # the table is tiny
                before = await connection.scalar(text(_RETURNED))
                await connection.execute(text(query))
                found[name] = int(await connection.scalar(text(_RETURNED)) or 0) - int(before or 0)
        return found

    first, later = await read(3), await read(30)
    assert {name: count for name, count in later.items() if count > first[name] + 3} == {}


@pytest.mark.parametrize(
    ("statement", "sign"),
    [
        (
            "UPDATE ledger_transfers SET amount = amount + 1 WHERE id = (SELECT max(id) FROM ledger_transfers)",
            "seal of",
        ),
        ("DELETE FROM ledger_transfers WHERE id = (SELECT max(id) FROM ledger_transfers)", "seal of"),
        ("UPDATE usage_rows SET cost = cost + 1", "usage and its transfers differ"),
        ("UPDATE billing_accounts SET owed = owed + 1", "an account differs from the ledger"),
        ("UPDATE billing_accounts SET invoiced = invoiced + 1", "an account differs from the ledger"),
        ("UPDATE ledger_seals SET hash = '\\x00' WHERE seq = (SELECT max(seq) FROM ledger_seals)", "seal of"),
        ("DELETE FROM ledger_seals WHERE seq = (SELECT max(seq) FROM ledger_seals) - 1", "gap"),
    ],
)
async def test_no_checkpoint_moves_over_what_does_not_verify(
    platform: Platform, statement: str, sign: str
) -> None:
    acme = await used(platform, 2)
    await checkpoints.advance(platform.database)
    for _ in range(2):
        await platform.use(acme, input=1_000_000)
        await sealed(platform)
    await harm(platform, statement)
    moved = await checkpoints.advance(platform.database)
    assert moved < 2 or sign == "an account differs from the ledger"
    assert any(sign in problem for problem in (await recent(platform)).problems)


async def test_a_change_behind_the_checkpoint_is_found_in_its_turn(platform: Platform) -> None:
    await used(platform, 3)
    await checkpoints.advance(platform.database)
    month = await platform.end_month()
    await harm(platform, "UPDATE ledger_transfers SET source_id = gen_random_uuid() WHERE id = 1")
    assert (await recent(platform)).problems == []
    assert await checkpoints.verify_slice(platform.database) < 3
    (problem,) = (await recent(platform)).problems
    assert "did not verify again" in problem
    failed = [one.name for one in (await checklist(platform.database, month)).checks if not one.ok]
    assert "ledger_sound" in failed
    # Mended, it verifies in its next turn.
    await harm(platform, "UPDATE ledger_transfers t SET source_id = u.request_id FROM usage_rows u WHERE t.id = 1 "
        "AND NOT EXISTS (SELECT 1 FROM ledger_transfers o WHERE o.source_id = u.request_id)")  # fmt: skip
    assert await checkpoints.verify_slice(platform.database) == 3
    assert (await recent(platform)).problems == []


async def test_the_whole_verification_compares_the_monthly_sums(platform: Platform) -> None:
    await used(platform, 2)
    await checkpoints.advance(platform.database)
    await harm(platform, "UPDATE ledger_months SET credit = credit + 1")
    async with platform.database.system() as connection:
        problems = (await verify(connection)).problems
    assert any("monthly sums differ" in problem for problem in problems)


async def test_only_transfers_that_differ_at_first_sight_are_looked_up_one_by_one(platform: Platform) -> None:
    await used(platform, 3)
    async with platform.database.engine.begin() as owner:
        await owner.execute(text("SET LOCAL track_functions = 'all'"))
        assert await owner.scalar(text("SELECT penstock_checkpoint(100, 100)")) == 3
        calls = text(
            "SELECT calls FROM pg_stat_xact_user_functions WHERE funcname IN ('penstock_usage_differs', "
            "'penstock_checkpoint') ORDER BY funcname"
        )
        assert [row.calls for row in await owner.execute(calls)] == [1]


async def test_links_of_the_earlier_format_are_covered(platform: Platform) -> None:
    acme = await used(platform, 1)
    await harm(platform, "DELETE FROM ledger_seals",
        "INSERT INTO ledger_seals (seq, transfer_id, hash) SELECT 1, t.id, sha256(convert_to(concat_ws('|', 1, t.id, "
        "(extract(epoch FROM t.at) * 1000000)::bigint, t.tenant_id, t.kind, t.debit_account, t.credit_account, "
        "t.amount, t.source_id, CASE WHEN t.at <> t.effective_at "
        "THEN (extract(epoch FROM t.effective_at) * 1000000)::bigint END), 'UTF8')) "
        "FROM ledger_transfers t")  # fmt: skip
    await platform.use(acme, input=1_000_000)
    await platform.is_sound()
    assert await checkpoints.advance(platform.database) == 2
    await platform.is_sound()


async def test_days_that_were_compared_are_not_read_again_unless_they_change(platform: Platform) -> None:
    acme = await used(platform, 1)
    await rollups.roll_up(platform.database)
    assert await rollups.verify_days(platform.database) == 0, "late usage may still reach the day"
    month = await platform.end_month()
    await rollups.roll_up(platform.database)
    assert await rollups.verify_days(platform.database) == 1
    assert await rollups.verify_days(platform.database) == 0
    await harm(platform, "UPDATE usage_rows SET cost = cost + 7")
    drift = next(one for one in (await checklist(platform.database, month)).checks if one.name == "drift")
    assert drift.ok, "the day was found equal, and no role changes a usage row"
    await harm(platform, "UPDATE usage_hours SET cost = cost + 7")
    drift = next(one for one in (await checklist(platform.database, month)).checks if one.name == "drift")
    assert not drift.ok, "the rollup no longer equals the ledger"
    await harm(platform, "UPDATE usage_rows SET cost = cost - 7")
    await platform.rows("SELECT penstock_roll_hour(hour) FROM usage_hours")
    await rollups.roll_up(platform.database)
    assert await rollups.verify_days(platform.database) == 1
    assert (await close_month(platform.database, month, by="fin")).ok
    assert acme.tenant_id


async def test_a_day_that_differs_is_kept_as_a_finding_and_compared_more_seldom(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    acme = await used(platform, 1)
    await platform.end_month()
    await rollups.roll_up(platform.database)
    await harm(platform, "UPDATE usage_hours SET cost = cost + 7")

    async def compared() -> int:
        caplog.clear()
        assert await rollups.verify_days(platform.database) == 0
        return len([one for one in caplog.records if "differs from its usage rows" in one.message])

    async def finding() -> Any:
        (row,) = await platform.rows("SELECT verified, difference FROM usage_day_state WHERE whole")
        return tuple(row)

    assert await compared() == 1
    told = f"1 organisations, the first {acme.tenant_id}: rows less rollup are 0 requests and -7 picodollars"
    assert await finding() == (False, told)
    async with platform.database.read() as connection:
        assert (await money_health(connection)).differing_days == 1
    # The first pause is ten minutes; then a day waits as long again as it has differed.
    for minutes in (10, 11, 23, 47):
        assert await compared() == 0
        await platform.clock.set(
            await platform.clock.now() + timedelta(minutes=minutes) - timedelta(minutes=1)
        )
        assert await compared() == 0, f"less than {minutes} minutes"
        await platform.clock.set(await platform.clock.now() + timedelta(minutes=2))
        assert await compared() == 1, f"after {minutes} minutes"
    await platform.rows("SELECT penstock_roll_hour(hour) FROM usage_hours")
    await rollups.roll_up(platform.database)
    assert await rollups.verify_days(platform.database) == 1, (
        "a day that was rolled up again is compared at once"
    )
    assert await finding() == (True, None)
    async with platform.database.read() as connection:
        assert (await money_health(connection)).differing_days == 0


async def test_the_comparison_of_a_day_holds_no_lock_of_the_rollup(platform: Platform) -> None:
    await used(platform, 1)
    await platform.end_month()
    await rollups.roll_up(platform.database)
    async with platform.database.system() as busy:
        await busy.execute(text("SELECT pg_advisory_xact_lock(hashtext('penstock_rollup'))"))
        async with asyncio.timeout(30):
            assert await rollups.verify_days(platform.database) == 1


async def test_a_day_that_is_rolled_up_during_its_comparison_is_not_taken_as_equal(
    platform: Platform,
) -> None:
    await used(platform, 1)
    await platform.end_month()
    await rollups.roll_up(platform.database)
    async with platform.database.system() as roller:
        # Rolling up holds the day's row; the comparison has read its snapshot and waits to store the result.
        await roller.execute(
            text("SELECT penstock_roll_hour(hour), penstock_roll_day(day) FROM usage_hours, usage_day_state")
        )
        comparing = asyncio.create_task(rollups.verify_days(platform.database))
        await until(
            lambda: platform.one(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            )
        )
    assert await comparing == 0
    assert await rollups.verify_days(platform.database) == 1


async def test_expensive_checks_wait_for_the_cheap_ones(platform: Platform) -> None:
    await used(platform, 1)
    await platform.clock.set(bounds(platform.month)[1] + timedelta(hours=1))
    found = {one.name: one for one in (await checklist(platform.database, platform.month)).checks}
    assert not found["month_over"].ok
    assert found["ledger_sound"].ok
    assert found["drift"].detail == "not run while month_over failed"
    assert next_month(platform.month)


async def test_sealing_and_verifying_read_only_their_own_transfers(platform: Platform) -> None:
    """The planner expects a ninth of the ledger between two ids of a join, and would read all of it for each link."""
    await used(platform, 1)
    async with platform.database.engine.begin() as owner:
        await owner.execute(text("SET LOCAL session_replication_role = replica"))
        await owner.execute(
            text(
                "INSERT INTO ledger_transfers (tenant_id, kind, debit_account, credit_account, amount, source_id) "
                "SELECT tenant_id, 'usage', debit_account, credit_account, 1, gen_random_uuid() FROM ledger_transfers, "
                "generate_series(1, 50000)"
            )
        )
        await owner.execute(
            text(
                "INSERT INTO ledger_unsealed (transfers) SELECT int8multirange(int8range(g, least(g + 100, m + 1))) "
                "FROM (SELECT max(id) AS m FROM ledger_transfers) t, generate_series(2, m, 100) g"
            )
        )
    async with platform.database.engine.connect() as owner:
        await owner.execution_options(isolation_level="AUTOCOMMIT")
        await owner.execute(text("ANALYZE ledger_transfers"))
    scanned = "SELECT pg_stat_get_xact_tuples_returned('ledger_transfers'::regclass)"
    for query in (
        "SELECT penstock_seal(1000)",
        "SELECT * FROM penstock_verify_links(0, '', 9223372036854775807, 1000)",
    ):
        async with platform.database.system() as connection:
            before = await connection.scalar(text(scanned))
            await connection.execute(text(query))
            assert await connection.scalar(text(scanned)) == before, query
