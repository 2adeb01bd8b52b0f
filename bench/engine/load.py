"""Sends loads of known lengths to a real engine and records when its tokens arrive."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from sim.pool.validation.measured import MeasuredLoad, MeasuredRequest

_TIMEOUT = aiohttp.ClientTimeout(total=300)


@dataclass(frozen=True)
class Shape:
    """The parameters of a load. Lengths are in tokens, drawn uniformly between the two figures."""

    name: str
    rate: float
    """Requests per second; arrivals are a Poisson process."""
    seconds: float
    prompt: tuple[int, int]
    output: tuple[int, int]
    prefixes: int = 0
    """Number of shared prefixes that prompts begin with; 0 = none."""
    prefix_tokens: int = 0


@dataclass(frozen=True)
class _Planned:
    at: float
    prompt: list[int]
    output: int
    prefix: int


def plan(shape: Shape, vocabulary: int, rng: random.Random) -> list[_Planned]:
    """Return the load's requests with their token ids."""

    def tokens(count: int) -> list[int]:
        return [rng.randrange(100, vocabulary) for _ in range(count)]

    shared = [tokens(shape.prefix_tokens) for _ in range(shape.prefixes)]
    planned, at = [], rng.expovariate(shape.rate)
    while at < shape.seconds:
        prefix = rng.randrange(shape.prefixes) if shape.prefixes else -1
        head = shared[prefix] if prefix >= 0 else []
        body = tokens(rng.randint(*shape.prompt))
        planned.append(_Planned(at, head + body, rng.randint(*shape.output), prefix))
        at += rng.expovariate(shape.rate)
    return planned


async def run_load(
    url: str,
    model: str,
    shape: Shape,
    rng: random.Random,
    vocabulary: int,
    *,
    tick: Callable[[], None],
) -> MeasuredLoad:
    """Send one load in an open loop and call `tick` as each answer ends. Raises RuntimeError when a request fails."""
    planned = plan(shape, vocabulary, rng)
    async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()

        async def one(each: _Planned) -> MeasuredRequest:
            await asyncio.sleep(max(0.0, each.at - (time.perf_counter() - began)))
            answer = await _ask(session, url, model, each, shape, began)
            tick()
            return answer

        requests = await asyncio.gather(*(one(each) for each in planned))
    return MeasuredLoad(shape.name, shape.rate, sorted(requests, key=lambda request: request.at))


async def _ask(
    session: aiohttp.ClientSession, url: str, model: str, each: _Planned, shape: Shape, began: float
) -> MeasuredRequest:
    body = {
        "model": model,
        "prompt": each.prompt,
        "max_tokens": each.output,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    sent, first, usage = time.perf_counter(), 0.0, {}
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise RuntimeError(f"the engine answered {answer.status}: {(await answer.text())[:300]}")
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if not first and chunk.get("choices"):
                first = time.perf_counter()
            usage = chunk.get("usage") or usage
    details = usage.get("prompt_tokens_details") or {}
    return MeasuredRequest(
        at=round(sent - began, 6),
        prompt_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
        cached_tokens=details.get("cached_tokens") or 0,
        ttft_s=round(first - sent, 6),
        e2e_s=round(time.perf_counter() - sent, 6),
        prefix=each.prefix,
        prefix_tokens=shape.prefix_tokens if each.prefix >= 0 else 0,
    )
