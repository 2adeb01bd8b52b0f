"""An added model that is slow enough for one request a second to need a second host."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.support.load import Seen, stream

NAME = "acme/slow"
KIND = "gpu-h100x1-80gb"
SET_TARGETS = ("models", "set-targets", NAME, "--ttft-s", "10", "--tpot-s", "5")
SET_SCALING = (
    "models", "set-scaling", NAME, "--min", "1", "--max", "2", "--host-kind", KIND, "--month-budget", "1000",
    "--reason", "test",
)  # fmt: skip
SET_WAKE_DEADLINE = ("models", "set-wake-deadline", NAME, "600")
SET_ACTING = ("pools", "set-acting", "on", "--reason", "test")
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
_PROFILE = """
[figures]
prefill_tokens_per_s = { value = 500, basis = "assumed", date = 2026-11-28, source = "a test" }
step_base_s = { value = 0.01, basis = "assumed", date = 2026-11-28, source = "a test" }
"""
_PROMPT = "abc " * 300


def add_command(directory: Path) -> tuple[str, ...]:
    """Write the model's files below `directory`; returns the words of the command that adds it."""
    weights, profile = directory / "slow", directory / "profile.toml"
    weights.mkdir()
    (weights / "config.json").write_text(json.dumps(_CONFIG))
    profile.write_text(_PROFILE)
    needs = ("--host-kind", KIND, "--gpus", "1", "--arg", "max-model-len=2048", "--profile", str(profile))
    return ("models", "add", NAME, "--weights", str(weights), *needs, "--unchecked")


@asynccontextmanager
async def load(base_url: str, key: str, every_s: float, seen: list[Seen]) -> AsyncIterator[None]:
    """Streaming requests, one every `every_s` seconds; all are waited for at the end."""
    stop, open_requests = asyncio.Event(), []

    async def send(session: aiohttp.ClientSession) -> None:
        while not stop.is_set():
            seen.append(Seen())
            prompt = f"{len(seen)} {_PROMPT}"
            request = stream(session, base_url, key, NAME, max_tokens=8, seen=seen[-1], prompt=prompt)
            open_requests.append(asyncio.create_task(request))
            await asyncio.wait({asyncio.create_task(stop.wait())}, timeout=every_s)

    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        sending = asyncio.create_task(send(session))
        try:
            yield
        finally:
            stop.set()
            await sending
            await asyncio.gather(*open_requests)
