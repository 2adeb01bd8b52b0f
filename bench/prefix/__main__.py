"""`python -m bench.prefix`: exact prefix knowledge beside the mirror; a table, and JSON into bench/out.

End to end on two engines with the tiny model (the real vLLM, or simulated ones): conversations of several tenants,
together larger than the engines' caches, each turn sent when the one before it is answered. The same requests for
both kinds of knowledge.
"""

import argparse
import asyncio
import json
import pydoc_data.topics
import random
import statistics
import time
from pathlib import Path
from typing import Any

import openai

from bench.prefix.cost import costs
from bench.prefix.rig import MODEL, Platform, platform
from bench.provenance import provenance

OUT = Path(__file__).resolve().parents[1] / "out"
KINDS = ("mirrored", "exact")
TENANTS = 4
"""Number of tenants."""
TURNS = 4
"""Number of turns of each conversation."""
OPENING_CHARS = 2_400
"""Characters of a conversation's first message, after its tenant's system prompt."""
SYSTEM_CHARS = 1_200
"""Characters of each tenant's system prompt."""


async def converse(api: openai.AsyncOpenAI, system: str, opening: str, seen: list[dict[str, float]]) -> None:
    """Run one conversation turn by turn, and append one row per request to `seen`."""
    messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": opening}]
    for turn in range(TURNS):
        began, first, text, usage = time.perf_counter(), 0.0, [], None
        stream = await api.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for event in stream:
            first = first or time.perf_counter()
            text += [choice.delta.content or "" for choice in event.choices]
            usage = event.usage or usage
        if usage is None:
            raise RuntimeError("an answer came without usage")
        details = usage.prompt_tokens_details
        cached = (details.cached_tokens or 0) if details else 0
        seen.append({"ttft_s": first - began, "prompt": usage.prompt_tokens, "cached": cached})
        messages += [
            {"role": "assistant", "content": "".join(text)},
            {"role": "user", "content": f"Question {turn}: what follows from it?"},
        ]


async def load(running: Platform, conversations: int, concurrency: int, seed: int) -> list[dict[str, float]]:
    """Run all conversations, at most `concurrency` at once, in an order drawn from `seed`."""
    texts = "".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
    keys = [running.key(f"bench {seed} {number}") for number in range(TENANTS)]
    apis = [
        openai.AsyncOpenAI(base_url=f"{running.base_url}/v1", api_key=key, max_retries=0, timeout=120)
        for key in keys
    ]
    order = list(range(conversations))
    random.Random(seed).shuffle(order)
    gate, seen = asyncio.Semaphore(concurrency), list[dict[str, float]]()

    async def one(number: int) -> None:
        start = (number * OPENING_CHARS) % (len(texts) - OPENING_CHARS)
        system = texts[-(1 + number % TENANTS) * SYSTEM_CHARS :][:SYSTEM_CHARS]
        async with gate:
            await converse(apis[number % TENANTS], system, texts[start : start + OPENING_CHARS], seen)

    await asyncio.gather(*(one(number) for number in order))
    for api in apis:
        await api.close()
    return seen


def measure(
    kind: str, engine: str, conversations: int, concurrency: int, seed: int
) -> tuple[dict[str, Any], Any]:
    """Return one kind's figures, and the cost of hashing if its agent built a tokenizer."""
    with platform(kind, engine) as running:
        asyncio.run(load(running, TENANTS, TENANTS, seed + 1))  # warm up tokenizers, engines and pools
        before = running.cpu_s()
        predicted, actual = (running.metric("scheduler", name) for name in _HITS)
        seen = asyncio.run(load(running, conversations, concurrency, seed))
        after = running.cpu_s()
        predicted, actual = (
            running.metric("scheduler", name) - old
            for name, old in zip(_HITS, (predicted, actual), strict=True)
        )
        ttft = sorted(each["ttft_s"] for each in seen)
        row = {
            "kind": kind,
            "requests": len(seen),
            "hit_rate": sum(each["cached"] for each in seen) / sum(each["prompt"] for each in seen),
            "predicted_over_actual": predicted / actual if actual else None,
            "ttft_p50_ms": 1e3 * statistics.median(ttft),
            "ttft_p90_ms": 1e3 * ttft[int(len(ttft) * 0.9)],
        }
        row |= {f"{role}_cpu_ms": 1e3 * (after[role] - before[role]) / len(seen) for role in before}
        tokenizer = running.data_dir / "models" / "penstock-tiny"
        return row, costs(tokenizer) if tokenizer.exists() else None


_HITS = (
    "penstock_scheduler_hit_tokens_predicted_total",
    "penstock_scheduler_hit_tokens_actual_total",
)


def main() -> None:
    """Run the benchmark, print the table and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.prefix", description=__doc__)
    parser.add_argument("--engine", choices=("vllm", "sim"), default="vllm")
    parser.add_argument("--conversations", type=int, default=60)
    parser.add_argument("--concurrency", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    rows, hashing = [], None
    for kind in KINDS:
        row, hashing = measure(kind, chosen.engine, chosen.conversations, chosen.concurrency, chosen.seed)
        rows.append(row)
        print(json.dumps(row, indent=1))
    for line in hashing or ():
        print(line)
    result = {
        **provenance(),
        "engine": chosen.engine,
        "load": {"conversations": chosen.conversations, "turns": TURNS, "concurrency": chosen.concurrency},
        "end_to_end": rows,
        "hashing": hashing,
    }
    OUT.mkdir(exist_ok=True)
    (OUT / "prefix.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
