"""Ranks of one engine through the whole API: the gateway asks for the rank that the scheduler has chosen."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_process import MODEL, Api, api_process

STORY = "The water runs from the lake through the pipe and turns the wheel. " * 60


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_process(pg_url, redis_url, tmp_path, profile="dp2") as made:
        yield made


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}


def prompts_by_rank(api: Api) -> list[int]:
    """Prompt tokens that each rank of the engine has taken."""
    return [rank.counters.prompt_tokens for rank in api.engines[0].server._loop.model.ranks]


async def test_a_conversation_stays_on_its_rank_and_others_go_elsewhere(api: Api) -> None:
    """The engine by itself would alternate: it sends each of these requests to the rank after the last."""
    cached = []
    for turn in range(4):
        status, answer, _ = await api.post(body(f"{STORY} Turn {turn}."))
        assert status == 200
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    first, second = sorted(prompts_by_rank(api))
    assert (first, second > 0) == (0, True)
    assert cached[0] == 0
    assert min(cached[1:]) > 500
    answers = await asyncio.gather(
        *(api.post(body(f"Story {number}: {STORY[number:]}", max_tokens=64)) for number in range(12))
    )
    assert {status for status, _, _ in answers} == {200}
    assert min(prompts_by_rank(api)) > 0


async def test_all_requests_of_both_ranks_are_billed_to_one_replica(api: Api) -> None:
    await asyncio.gather(
        *(api.post(body(f"Story {number}: {STORY[number:]}", max_tokens=64)) for number in range(12))
    )
    assert min(prompts_by_rank(api)) > 0
    rows = await api.usage_rows(12)
    assert {row.replica_id for row in rows} == {"host/r0"}
    assert sum(row.input_tokens for row in rows) == sum(prompts_by_rank(api))
