"""The real vLLM with two ranks of data parallelism on the CPU: it obeys the header, and publishes events by rank."""

import asyncio
import pydoc_data.topics
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import MODEL, PRICE, START_S
from tests.e2e.test_prefix_knowledge import BLOCK, Answer, ask, metric, user
from tests.support.invariants import rows_by_request, settled_everything
from tests.support.stack import Stack, alive
from tests.support.waiting import until
from workers.engine_api import parse_metrics
from workers.ranks import RANK_HEADER
from workers.wire import RankStatus

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

TEXTS = [text for _, text in sorted(pydoc_data.topics.topics.items()) if len(text) > 2600]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A platform whose only engine has two ranks, with exact knowledge of their caches."""
    made = Stack(
        tmp_path_factory.mktemp("ranks") / "data",
        *("--engine", "vllm", "--model", MODEL, "--profile", "dp2"),
        env={"PENSTOCK_PREFIX": "exact"},
    )
    processes = []
    try:
        made.start(START_S).approved("POST", "/prices", json={"model": MODEL, **PRICE})
        yield made
        processes = made.processes()
    finally:
        assert made.stop() == 0, made.log.read_text()[-3000:]
        assert alive(processes) == []


def ranks_of(url: str) -> tuple[RankStatus, ...]:
    """What the engine's metrics say of each rank."""
    return parse_metrics(httpx.get(f"{url}/metrics", timeout=60.0).text).ranks


def prompts_by_rank(url: str) -> list[int]:
    """Prompt tokens that each rank of the engine has taken."""
    return [rank.counters.prompt_tokens for rank in ranks_of(url)]


async def replica(stack: Stack) -> dict[str, object]:
    """The only replica, once its caches are known by their events."""

    async def found() -> dict[str, object] | None:
        await asyncio.sleep(0.5)
        (one,) = stack.admin("GET", "/pools")["replicas"]
        return one if (one["state"], one["prefix_kind"]) == ("ready", "tokens") else None

    return await until(found, timeout_s=240)


async def test_the_engine_obeys_the_header(stack: Stack) -> None:
    one = await replica(stack)
    url, key = str(one["url"]), engine_key(stack)
    # The num-gpu-blocks-override of the profile holds for each rank.
    assert [rank.kv_blocks for rank in ranks_of(url)] == [2304, 2304]
    for rank in (1, 0, 1):
        before = prompts_by_rank(url)
        async with httpx.AsyncClient(timeout=60.0) as client:
            answer = await client.post(
                f"{url}/v1/completions",
                json={"model": MODEL, "prompt": "The river", "max_tokens": 2},
                headers={"Authorization": f"Bearer {key}", RANK_HEADER: str(rank)},
            )
        assert answer.status_code == 200, answer.text
        await until(lambda: prompts_by_rank(url)[rank] > before[rank], timeout_s=60)  # noqa: B023 - awaited here
        assert prompts_by_rank(url)[1 - rank] == before[1 - rank]


async def test_conversations_stay_on_the_ranks_that_hold_them(stack: Stack) -> None:
    """The engine by itself takes turns: of two conversations each would find its prefix half of the time."""
    await replica(stack)
    tenant = stack.make_tenant("Elder")
    texts = [[user(TEXTS[number][:2600])] for number in range(4)]
    turns: list[list[Answer]] = [list(await asyncio.gather(*(ask(stack, tenant, *each) for each in texts)))]
    for _ in range(3):
        for text, answer in zip(texts, turns[-1], strict=True):
            text += [{"role": "assistant", "content": answer.text}, user("Tell me more of it.")]
        turns.append([await ask(stack, tenant, *each) for each in texts])
    kept = [
        later.cached_tokens >= earlier.prompt_tokens - 2 * BLOCK
        for before, after in pairwise(turns)
        for earlier, later in zip(before, after, strict=True)
    ]
    assert sum(kept) >= 0.75 * len(kept), "a rank that was slow for a while may be left, but not as a rule"
    await settled_everything(stack, tenant.id)
    rows = await rows_by_request(stack, tenant.id)
    assert len({row["replica_id"] for row in rows.values()}) == 1
    predicted = metric(stack, "scheduler", "penstock_scheduler_hit_tokens_predicted_total", model=MODEL)
    assert predicted > 0


def engine_key(stack: Stack) -> str:
    """The key that the engine requires, from the environment of the agent."""
    (pid,) = stack.pids("agent")
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    found = next(each for each in variables if each.startswith(b"PENSTOCK_ENGINE_KEY="))
    return found.split(b"=", 1)[1].decode()
