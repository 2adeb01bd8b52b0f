"""How an engine finds a LoRA adapter that a request names: it asks the agent of its host, which fetches the files.

vLLM asks its resolvers for each adapter that it does not know, while the request waits, and loads what they find. It
imports this module in its own environment (`--middleware workers.engine_adapters.AdapterGuard`), before it looks for
resolvers, so that the import registers ours; the module imports the standard library and vLLM alone. The agent's side
is `workers.adapter_host`.
"""

import asyncio
import json
import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from workers.engine_guard import EngineGuard

SOCKET_VARIABLE = "ENGINE_ADAPTERS_SOCKET"
"""The environment variable with the agent's Unix socket."""
ENGINE_VARIABLE = "ENGINE_ADAPTERS_REPLICA"
"""The environment variable with the name of the replica, for the agent's list of loaded adapters."""
ANSWER_S = 300.0
"""Seconds that the agent may take: an adapter can have gigabytes."""
MAX_LINE_BYTES = 64 * 1024


async def ask_agent(name: str) -> str | None:
    """The directory of an adapter on this host; None = there is none of this name.

    Raises RuntimeError with the agent's reason when it cannot be fetched now, OSError when no agent answers, and
    TimeoutError. The engine answers these with 500, so that another replica is tried.
    """
    async with asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_unix_connection(os.environ[SOCKET_VARIABLE], limit=MAX_LINE_BYTES)
        try:
            asked = {"adapter": name, "replica": os.environ.get(ENGINE_VARIABLE, "")}
            writer.write(json.dumps(asked).encode() + b"\n")
            answer: dict[str, Any] = json.loads(await reader.readline() or b"{}")
        finally:
            writer.close()
    if "path" not in answer:
        raise RuntimeError(str(answer.get("error") or "the agent of this host has ended"))
    return answer["path"] or None


class AdapterGuard(EngineGuard):
    """The guard of an engine that takes adapters."""


class AgentResolver:
    """Asks the agent for adapters that the engine does not know: one of vLLM's `LoRAResolver`s."""

    def __init__(self, request: Callable[..., Any]) -> None:
        """`request` makes vLLM's LoRARequest."""
        self._request = request

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
        """The adapter with its directory; None = there is none of this name."""
        del base_model_name  # the platform resolves an adapter to its own model before it sends a request
        path = await ask_agent(lora_name)
        return None if path is None else self._request(lora_name, 1, path)  # vLLM sets the number


if find_spec("vllm") is not None:  # in the engine's environment; the simulated engine asks by itself
    _registry = import_module("vllm.lora.resolver").LoRAResolverRegistry
    _registry.register_resolver("penstock", AgentResolver(import_module("vllm.lora.request").LoRARequest))
