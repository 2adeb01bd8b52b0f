"""What is measured on a running engine. Each function returns figures for the JSON file; times are in seconds."""

import asyncio
import csv
import json
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import zmq.asyncio

from bench.gpu.rig import Rig
from core.clock import SystemClock
from workers.acceptance.speed import PROBES, shortest
from workers.engine_speed import timed
from workers.kv_endpoints import kv_endpoints
from workers.kv_events import KvSubscriber
from workers.kv_events_feed import KvFeed
from workers.plan import TINY
from workers.token_blocks import packed, token_block_hashes

Figures = dict[str, Any]
VOCABULARY = 4096
SALT = "gpu"
GREEDY_TOKENS = 64
USERS = (1, 4, 16, 48)
SHAPES = ((256, 32), (1024, 128), (4096, 64))
"""Tokens of prompts and answers of the sweep."""
EACH = 3
"""Requests of each user, one after the other."""
_EVENTS_S = 10.0
"""Longest time until an engine has told of a prompt's blocks."""


async def one_user(rig: Rig, sentences: int) -> Figures:
    """Decode and prefill of a lone user, the best of PROBES. Raises RuntimeError when the engine does not answer."""
    probes = [
        await timed(rig.api, TINY, SystemClock(), sentences=sentences, tokens=33, whole=True)
        for _ in range(PROBES)
    ]
    answered = [each for each in probes if each is not None]
    if not answered:
        raise RuntimeError("the engine answered none of the probes")
    best = shortest(answered)
    return {
        "first_token_s": round(best.first_s, 5),
        "decode_tokens_per_s": round(1 / best.step_s, 1),
        "prefill_tokens": best.many - best.few,
        "prefill_tokens_per_s": round((best.many - best.few) / max(best.prefill_s, 1e-9)),
    }


async def greedy(rig: Rig) -> str:
    """The answer at temperature 0 to a fixed prompt."""
    prompt = random.Random(1).choices(range(100, VOCABULARY), k=256)
    return str((await _complete(rig, prompt, GREEDY_TOKENS))["choices"][0]["text"])


async def sleep_and_wake(rig: Rig, level: int = 1) -> Figures:
    """Seconds of a sleep and of a wake, how deeply the engine says it slept, and whether its answer is the one before.

    At level 2 the engine drops its weights, so the same answer shows that it has reloaded them. The agent asks for an
    answer of its own, too, and ends an engine whose answer differs.
    """
    before = await greedy(rig)
    slept = await rig.command("sleep", level)
    said = (await rig.api.metrics()).sleep_level
    woken = await rig.command("wake")
    return {
        "sleep_s": round(slept, 3),
        "wake_s": round(woken, 3),
        "engine_level": said,
        "same_answer": await greedy(rig) == before,
    }


async def prefix_knowledge(rig: Rig, tokens: int = 2048) -> Figures:
    """Tokens of a prompt that are cached by the engine's events, beside those that the engine took from its cache."""
    block = rig.replica.block_size
    prompt = random.Random(2).choices(range(100, VOCABULARY), k=tokens)
    hashes = token_block_hashes(packed(prompt), block, SALT)
    feed = KvFeed("gpu", asyncio.Event())
    boot, context = rig.replica.boot_id, zmq.asyncio.Context()
    endpoints = kv_endpoints(rig.data_dir, rig.replica.replica_id)
    subscriber = KvSubscriber(
        endpoints, feed, boot_id=lambda: boot, now=time.monotonic, context=context, block_tokens=lambda: block
    )
    following = asyncio.create_task(subscriber.run())
    try:
        await _complete(rig, prompt, 1)
        known = await _known(feed, hashes)
        # An engine computes the last token of a prompt even where it holds all of it.
        usage = (await _complete(rig, [*prompt, 100], 1))["usage"]
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        context.destroy(linger=0)
    return {
        "block_tokens": block,
        "known_tokens": known * block,
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
    }


async def _known(feed: KvFeed, hashes: Sequence[int]) -> int:
    """Leading blocks that the feed has, once it has all or _EVENTS_S are over."""
    deadline = time.monotonic() + _EVENTS_S
    while True:
        held = set(feed.blocks.block_hashes())
        known = next((number for number, each in enumerate(hashes) if each not in held), len(hashes))
        if known == len(hashes) or time.monotonic() > deadline:
            return known
        await asyncio.sleep(0.02)


async def sweep(
    rig: Rig,
    shapes: Iterable[tuple[int, int]] = SHAPES,
    users: Iterable[int] = USERS,
    each: int = EACH,
) -> list[Figures]:
    """The engine at several concurrencies and lengths, as rows that `penstock sim fit` reads."""
    rng = random.Random(3)
    rows = []
    for prompt_tokens, output_tokens in shapes:
        for count in users:
            prompts = [
                [rng.choices(range(100, VOCABULARY), k=prompt_tokens) for _ in range(each)]
                for _ in range(count)
            ]
            began = time.perf_counter()
            times = await asyncio.gather(*(_user(rig, mine, output_tokens) for mine in prompts))
            elapsed = time.perf_counter() - began
            first, later = zip(*(pair for user in times for pair in user), strict=True)
            rows.append(
                {
                    "input_tokens": prompt_tokens,
                    "output_tokens": output_tokens,
                    "concurrency": count,
                    "ttft_mean_s": round(statistics.fmean(first), 5),
                    "tpot_mean_s": round(statistics.fmean(later), 6),
                    "output_tok_s": round(count * each * output_tokens / elapsed, 1),
                }
            )
    return rows


async def _user(rig: Rig, prompts: Sequence[list[int]], output_tokens: int) -> list[tuple[float, float]]:
    """Seconds to the first token and per later token of one request after the other."""
    times = []
    for prompt in prompts:
        sent, first = time.perf_counter(), 0.0
        body = {**_body(prompt, output_tokens), "stream": True}
        async with rig.session.post(f"{rig.api.url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if not first and line.startswith(b"data: {"):
                    first = time.perf_counter()
        times.append((first - sent, (time.perf_counter() - first) / max(1, output_tokens - 1)))
    return times


def write_sweep(rows: Sequence[Figures], path: Path, facts: Figures) -> None:
    """Write rows as CSV; `facts` has further columns that are the same in all."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0], *facts], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **facts} for row in rows)


def _body(prompt: list[int], tokens: int) -> Figures:
    return {
        "model": TINY,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": SALT,
    }


async def _complete(rig: Rig, prompt: list[int], tokens: int) -> Figures:
    async with rig.session.post(f"{rig.api.url}/v1/completions", json=_body(prompt, tokens)) as answer:
        answer.raise_for_status()
        found: Figures = json.loads(await answer.read())
        return found
