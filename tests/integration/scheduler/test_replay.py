"""From traffic through a running scheduler over PostgreSQL to the answer of `penstock sim replay`."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from click.testing import Result
from typer.testing import CliRunner

from cli.main import app
from core.clock import SystemClock
from core.db import Database
from core.errors import Refused
from scheduler.request_trace_store import RequestTraceStore
from scheduler.service import SchedulerService
from scheduler.wire import Released
from tests.support.scheduling import MODEL, agent, client, replica, request, service


async def _traffic(database: Database, requests: int = 30) -> None:
    """Some requests of two tenants, each with its own prompt, and one that is refused."""
    store = RequestTraceStore(database, SystemClock())
    async with (
        service(listeners=[store.trace]) as scheduler,
        agent(scheduler.port, replica()),
        client(scheduler.port) as api,
    ):
        for number in range(requests):
            tenant = number % 2
            blocks = [1000 * tenant + block for block in range(32)]
            asked = request(tenant=f"tenant-{tenant}", blocks=blocks, block_tokens=32, prompt_tokens=1100)
            placement = await api.place(asked)
            api.prefill_done(placement)
            api.release(Released(placement.request_id, placement.replica_id, 1100, 512, 20))
        await _refused(scheduler, api)
    await store.close()


async def _refused(scheduler: SchedulerService, api) -> None:
    scheduler.state._grace_ends = 0.0
    try:
        await api.place(request(model="nobody's", deadline_s=0.2))
    except Refused:
        return
    raise AssertionError("a model that nobody serves was placed")


async def _command(database: Database, *words: str) -> Result:
    """The command in a thread: it has an event loop of its own."""
    runner = CliRunner(env={"DATABASE_URL": database.url})
    return await asyncio.to_thread(runner.invoke, app, ["sim", "replay", *words])


async def test_what_came_is_replayed_on_pools_of_several_sizes(database: Database, tmp_path: Path) -> None:
    await _traffic(database)
    result = await _command(database, "--model", MODEL, "--hosts", "1,2", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["models"] == [MODEL]
    assert answer["requests"] == answer["measured"]["requests"] == 30
    assert answer["measured"]["hit_rate"] == 512 / 1100
    assert [pool["hosts"] for pool in answer["pools"]] == [1, 2]
    for pool in answer["pools"]:
        assert pool["host_kinds"] == {MODEL: "local-cpu"}
        assert pool["figures"]["requests"] == 30
        assert float(pool["figures"]["usd_per_mtok"]) > 0
    assert answer["pools"][0]["figures"]["hit_rate"] > 0.5, "all but the first prompt of each tenant"

    exported = tmp_path / "trace.jsonl"
    written = await _command(database, "--model", MODEL, "--export", str(exported))
    assert "30 requests written" in written.stdout
    again = await _command(database, str(exported), "--hosts", "1,2", "--json")
    assert json.loads(again.stdout) == answer


async def test_a_table_for_people_has_the_measured_beside_the_simulated(database: Database) -> None:
    await _traffic(database)
    result = await _command(database, "--model", MODEL)
    assert result.exit_code == 0, result.output
    for word in ("measured", "1 host", "TTFT p95", "refused", "USD per million tokens", "caches empty"):
        assert word in result.stdout


async def test_refused_requests_are_recorded_too(database: Database, tmp_path: Path) -> None:
    await _traffic(database, requests=2)
    path = tmp_path / "trace.jsonl"
    await _command(database, "--export", str(path))
    rows = [msgspec.json.decode(line) for line in path.read_text().splitlines()]
    outcomes = sorted(row["outcome"] for row in rows)
    assert outcomes[:2] == ["done", "done"]
    assert outcomes[2].startswith("refused:")
    unknown = await _command(database, "--since", "1h")
    assert unknown.exit_code == 2
    assert 'the catalog has no model "nobody\'s"' in unknown.stderr


async def test_mistakes_are_one_line_and_code_2(database: Database) -> None:
    await _traffic(database, requests=2)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for words, why in (
        (("--since", "9d", "--until", "8d"), "no request was recorded from"),
        (("--model", "other"), f"there are some for: nobody's, {MODEL}"),
        (("--model", MODEL, "--kind", "abacus"), "the catalog has no host of kind 'abacus'"),
        (("--model", MODEL, "--kind", "gpu-h100x8-640gb"), "it has for: local-cpu"),
        (("--hosts", "1,x"), "--hosts is '1,x'"),
        (("--hosts", "0"), "--hosts is '0'"),
        (("--since", "whenever"), "--since is 'whenever'"),
        (("--since", tomorrow), "must be before --until"),
        (("--model", MODEL, "--policy", "nobody"), "no policy is called 'nobody'"),
        (("nofile.jsonl",), "cannot be read"),
    ):
        result = await _command(database, *words)
        assert result.exit_code == 2, words
        assert why in result.stderr, words
        assert len(result.stderr.strip().splitlines()) == 1, words
