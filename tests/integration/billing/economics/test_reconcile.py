"""Engines' counters against usage rows: a healthy platform has nothing unexplained, a lost row is found."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from admin import reconcile as admin_reconcile
from admin.actor import system_actor
from billing.economics import engine_reconciliation
from billing.economics.close_checks import engines_explained
from billing.metering.holds import HoldManager
from billing.metering.records import HoldGranted, Outcome, Unbilled
from billing.metering.settlement import PendingSettlement, Settlement
from cli.main import app as penstock
from core.clock import SystemClock
from core.db import Database
from core.errors import Conflict
from core.tokens import TokenUsage
from tests.integration.billing.support import MODEL, Customer, make_customer, price
from workers.engine_counters import CounterReport, Cut, record_counters
from workers.wire import EngineCounters

BOOT, REPLICA = "boot-1", "host-1/river-0"
WARM = EngineCounters(prompt_tokens=100, generation_tokens=10)


class Engine:
    """An engine's counters, as a scheduler would report them, beside what requests used of it."""

    def __init__(
        self, database: Database, customer: Customer, manager: HoldManager, settlement: Settlement
    ) -> None:
        self.database, self.customer, self.manager, self.settlement = database, customer, manager, settlement
        self.prompt, self.generation = WARM.prompt_tokens, WARM.generation_tokens

    async def report(
        self, *, cut: bool = False, ended: bool = False, boot: str = BOOT, lost: tuple[int, int] = (0, 0)
    ) -> None:
        counters = EngineCounters(self.prompt - lost[0], self.generation - lost[1])
        cuts = (Cut(0.0, counters.prompt_tokens, counters.generation_tokens),) if cut else ()
        found = CounterReport(boot, REPLICA, MODEL, "sim", True, counters, WARM, 0.0, 0.0, ended, cuts)
        async with self.database.system() as connection:
            await record_counters(connection, found)

    async def hold(self) -> HoldGranted:
        return await self.manager.place(self.customer.hold())

    async def settle(
        self,
        granted: HoldGranted,
        tokens: tuple[int, int],
        outcome: Outcome = Outcome.COMPLETED,
        *,
        beyond: tuple[int, int] = (0, 0),
        unbilled: tuple[Unbilled, ...] = (),
        attempts: int = 1,
    ) -> UUID:
        """A request that used `tokens` by its row; the engine counted `beyond` more."""
        self.prompt += tokens[0] + beyond[0]
        self.generation += tokens[1] + beyond[1]
        record = self.customer.ended(
            granted,
            TokenUsage(input=tokens[0], output=tokens[1]),
            outcome,
            unbilled=unbilled,
            attempts=attempts,
        )
        self.settlement.submit(
            PendingSettlement(granted.request_id, record, lambda _: record, _ignore, _ignore)
        )
        assert await self.settlement.drain(30.0)
        return granted.request_id

    async def use(self, *tokens: int, **options: Any) -> UUID:
        return await self.settle(await self.hold(), (tokens[0], tokens[1]), **options)

    async def run(self) -> engine_reconciliation.RunResult:
        return await engine_reconciliation.run(self.database, confirm_s=0.0)

    async def lines(self) -> list[Any]:
        async with self.database.system() as connection:
            found = await connection.execute(
                text("SELECT * FROM reconciliations ORDER BY counter DESC, from_at")
            )
            return list(found)

    async def notices(self) -> list[Any]:
        async with self.database.system() as connection:
            return list(await connection.execute(text("SELECT * FROM notices ORDER BY created_at")))


def _ignore(request_id: UUID) -> None:
    """Ignore the id of a settled request."""


@pytest.fixture
async def engine(database: Database, pg_url: str) -> AsyncIterator[Engine]:
    await price(database)
    customer = await make_customer(database, "1000")
    manager = HoldManager(pg_url, "api-test", ttl_s=60, clock=SystemClock(), timeout_s=30.0)
    settlement = Settlement(pg_url)
    await manager.start()
    await settlement.start()
    yield Engine(database, customer, manager, settlement)
    await settlement.close()
    await manager.close()


async def test_every_cause_has_its_line_and_nothing_is_left(engine: Engine) -> None:
    await engine.report()
    await engine.use(50, 7)
    await engine.use(20, 3, outcome=Outcome.ENGINE_FAILED)
    await engine.use(10, 1, outcome=Outcome.ZERO_OUTPUT)
    again = Unbilled("choices", REPLICA, BOOT, input=30)
    await engine.use(30, 8, beyond=(30, 0), unbilled=(again,))
    cut = Unbilled("cancelled_tail", REPLICA, BOOT, tail_output=40)
    await engine.use(5, 4, beyond=(0, 6), outcome=Outcome.CLIENT_CANCELLED, unbilled=(cut,))
    retried = Unbilled("retried", REPLICA, BOOT, input=9, output=2, again_us=5)
    elsewhere = Unbilled("retried", "host-2/river-0", "boot-9", input=99, output=99, again_us=5)
    await engine.use(9, 9, beyond=(9, 2), unbilled=(retried, elsewhere), attempts=2)
    await engine.report(cut=True)
    assert (await engine.run()).unexplained == {"prompt": 0, "generation": 0}
    prompt, generation = await engine.lines()
    assert (prompt.engine, prompt.warmup, prompt.billed) == (263, 100, 94)
    assert (prompt.engine_failed, prompt.zero_output, prompt.choices, prompt.retried) == (20, 10, 30, 9)
    assert (generation.cancelled_tail, generation.retried, generation.warmup) == (6, 2, 10)
    assert (prompt.unexplained, generation.unexplained, prompt.unobserved) == (0, 0, 0)
    assert prompt.requests == 6


async def test_requests_that_run_are_not_compared_yet(engine: Engine) -> None:
    await engine.report()
    running = await engine.hold()
    await engine.use(50, 7)
    await engine.report()
    assert (await engine.run()).compared == 0, "there was no instant at which the engine stood still"
    # It ends on the engine before the cut; its row is written later, as by an adopted spool.
    engine.prompt, engine.generation = engine.prompt + 40, engine.generation + 2
    await engine.report(cut=True)
    found = await engine.run()
    assert (found.compared, found.waiting) == (0, 1), "a request admitted before the cut still holds money"
    await engine.settle(running, (40, 2), beyond=(-40, -2))
    found = await engine.run()
    assert (found.compared, found.waiting, found.unexplained) == (1, 0, {"prompt": 0, "generation": 0})


async def test_a_lost_row_raises_the_alarm_once_and_its_return_ends_it(engine: Engine) -> None:
    await engine.report()
    await engine.use(50, 7)
    lost = await engine.use(11, 5)
    await engine.report(cut=True)
    async with engine.database.engine.begin() as connection:
        rows = "usage_rows" if await _is_table(engine, "usage_rows") else "usage"
        await connection.execute(
            text(f"CREATE TABLE kept AS SELECT * FROM {rows} WHERE request_id = '{lost}'")
        )
        await connection.execute(text(f"DELETE FROM {rows} WHERE request_id = '{lost}'"))
    for _ in range(3):
        assert (await engine.run()).unexplained == {"prompt": 11, "generation": 5}
    told = await engine.notices()
    assert [notice.kind for notice in told] == ["reconciliation.unexplained"] * 2
    assert {notice.facts["tokens"] for notice in told} == {11, 5}
    async with engine.database.engine.begin() as connection:
        await connection.execute(text(f"INSERT INTO {rows} SELECT * FROM kept"))
    assert (await engine.run()).unexplained == {"prompt": 0, "generation": 0}


async def _is_table(engine: Engine, name: str) -> bool:
    async with engine.database.engine.connect() as connection:
        return bool(await connection.scalar(text("SELECT to_regclass(:name)"), {"name": name}))


async def test_a_row_lost_after_it_was_compared_is_found_again_with_its_request(engine: Engine) -> None:
    await engine.report()
    lost = await engine.use(11, 5)
    await engine.report(cut=True)
    assert (await engine.run()).unexplained == {"prompt": 0, "generation": 0}
    rows = "usage_rows" if await _is_table(engine, "usage_rows") else "usage"
    async with engine.database.engine.begin() as connection:
        await connection.execute(text(f"DELETE FROM {rows} WHERE request_id = '{lost}'"))
    assert (await engine.run()).unexplained == {"prompt": 0, "generation": 0}
    again = datetime.now(UTC) - timedelta(days=1)
    found = await engine_reconciliation.run(engine.database, since=again)
    assert found.unexplained == {
        "prompt": 11,
        "generation": 5,
    }
    actor = system_actor("test")
    traced = await admin_reconcile.trace(engine.database, actor, boot_id=BOOT)
    assert [(row.request_id, row.cause) for row in traced] == [(lost, "missing")]
    async with engine.database.system() as connection:
        red = await engines_explained(connection, datetime.now(UTC).date().replace(day=1))
    assert (red.ok, BOOT in red.detail) == (False, True)
    await admin_reconcile.accept(engine.database, actor, boot_id=BOOT, reason="the disk is gone")
    assert (await engine.run()).unexplained == {"prompt": 0, "generation": 0}
    async with engine.database.system() as connection:
        assert (await engines_explained(connection, datetime.now(UTC).date().replace(day=1))).ok
    with pytest.raises(Conflict):
        await admin_reconcile.accept(engine.database, actor, boot_id=BOOT, reason="again")
    (shown,) = await admin_reconcile.list_engines(engine.database, actor)
    assert (shown.unexplained_prompt, shown.accepted, shown.uncompared_tokens) == (11, True, 0)


async def test_a_row_that_the_engine_never_worked_for_is_unexplained(engine: Engine) -> None:
    await engine.report()
    await engine.use(50, 7, beyond=(-50, -7))
    await engine.report(cut=True)
    assert (await engine.run()).unexplained == {"prompt": 50, "generation": 7}
    prompt, _ = await engine.lines()
    assert prompt.unexplained == -50


async def test_what_the_last_scrape_did_not_see_is_unobserved_only_when_the_engine_died(
    engine: Engine,
) -> None:
    await engine.report()
    await engine.use(60, 6)
    await engine.report(cut=True)
    await engine.use(50, 7, outcome=Outcome.ENGINE_FAILED)
    await engine.report(ended=True, lost=(50, 3))
    assert (await engine.run()).unexplained == {"prompt": 0, "generation": 0}
    last = [row for row in await engine.lines() if row.to_at is None]
    assert {row.counter: row.unobserved for row in last} == {"prompt": 50, "generation": 3}


async def test_a_tail_explains_no_more_than_it_can_reach(engine: Engine) -> None:
    await engine.report()
    cut = Unbilled("cancelled_tail", REPLICA, BOOT, tail_output=10)
    await engine.use(5, 4, beyond=(0, 25), outcome=Outcome.CLIENT_CANCELLED, unbilled=(cut,))
    await engine.report(cut=True)
    assert (await engine.run()).unexplained == {"prompt": 0, "generation": 15}


async def test_an_incarnation_is_compared_stretch_by_stretch_and_by_itself(engine: Engine) -> None:
    await engine.report()
    for number in range(1, 4):
        await engine.use(number, number)
        await engine.report(cut=True)
        await engine.run()
    assert [row.billed for row in await engine.lines()] == [1, 2, 3] * 2
    engine.prompt, engine.generation = WARM.prompt_tokens, WARM.generation_tokens
    await engine.report(boot="boot-2")
    assert (await engine.run()).unexplained == {"prompt": 0, "generation": 0}
    assert (await engine.run()).compared == 0


async def test_counters_never_go_down(engine: Engine) -> None:
    engine.prompt = 500
    await engine.report()
    engine.prompt = 400
    await engine.report()
    async with engine.database.system() as connection:
        assert (
            await connection.execute(text("SELECT prompt_tokens FROM engine_counters"))
        ).scalar_one() == 500


async def test_the_command_line_tells_it(
    engine: Engine, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    await engine.report()
    request_id = await engine.use(50, 7, beyond=(1, 0))
    await engine.report(cut=True)

    async def say(*words: str) -> tuple[int, Any]:
        result = await asyncio.to_thread(CliRunner().invoke, penstock, ["reconcile", *words, "--json"])
        return result.exit_code, json.loads(result.stdout) if result.stdout else result.output

    code, outcome = await say("run")
    assert (code, outcome["unexplained"]) == (1, {"prompt": 1, "generation": 0})
    _, engines = await say("show")
    assert [(one["boot_id"], one["unexplained_prompt"]) for one in engines] == [(BOOT, 1)]
    _, lines = await say("show", BOOT)
    assert {line["counter"]: line["billed"] for line in lines} == {"prompt": 50, "generation": 7}
    _, traced = await say("trace", BOOT)
    assert [(row["request_id"], row["cause"]) for row in traced] == [(str(request_id), "billed")]
    _, chain = await say("chain", "--month", f"{datetime.now(UTC):%Y-%m}")
    told = {row["source"]: row for row in chain}
    assert told["gateway"]["amount_usd"] == told["ledger"]["amount_usd"]
    assert (told["ledger"]["difference_usd"], told["gateway"]["tokens"]) == ("0.00", 57)
    assert (await say("accept", BOOT, "--reason", "one token"))[0] == 0
    assert (await say("run"))[0] == 0
    assert (await say("show", "nobody"))[0] == 2
