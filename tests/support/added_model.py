"""The story of an added model on a running platform: added, without a price, priced, served, settled, removed."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from core.money import per_mtok_to_pico_per_token
from tests.support.invariants import money_is_sound, rows_by_request, settled_everything
from tests.support.second_host import second_host
from tests.support.stack import Stack
from tests.support.waiting import until_sync

NAME = "acme/river"
ADD_S = 400.0
"""Seconds that a command may take which imports the engine."""
PRICE = {"input": "1.50", "cached_input": "0.30", "output": "4.00", "reasoning": "4.00"}


def add_and_serve(stack: Stack, host_dir: Path, *options: str, engine: str) -> dict[str, Any]:
    """Add the model NAME, serve it from another host by `engine`, pay for an answer, and remove it.

    Returns the answer. No process of the platform is restarted. Without `--weights` in `options` the model is the
    hub's.
    """
    before = {role: stack.pids(role) for role in ("api", "scheduler", "jobs", "console")}
    words = ("--host-kind", "local-cpu", "--arg", "max-model-len=2048", "--json")
    added = json.loads(stack.command("models", "add", NAME, *words, *options, timeout_s=ADD_S))
    assert (added["basis"], added["fit"]["max_model_len"]) == ("unvalidated", 2_048)
    tenant = stack.make_tenant("River")

    def ask() -> httpx.Response:
        return httpx.post(
            f"{stack.base_url}/chat/completions",
            headers={"Authorization": f"Bearer {tenant.key}"},
            json={"model": NAME, "max_tokens": 8, "messages": [{"role": "user", "content": "Where to?"}]},
            timeout=120.0,
        )

    with second_host(stack, host_dir, NAME, engine):
        until_sync(lambda: ask().status_code != 404, 30.0, "the API processes know the model")
        refused = ask()
        assert refused.status_code >= 400
        assert "price" in refused.json()["error"]["message"], refused.text
        stack.admin("POST", "/prices", json={"model": NAME, **PRICE})
        until_sync(lambda: ask().status_code == 200, 60.0, "the model answers once it has a price")
        answer = ask()
        assert answer.status_code == 200, answer.text
        asyncio.run(_paid_by_the_token(stack, tenant.id))
        listed = {row["name"]: row["origin"] for row in json.loads(stack.command("models", "list", "--json"))}
        assert listed[NAME] == "added"
        stack.command("models", "remove", NAME)
        until_sync(lambda: ask().status_code == 404, 30.0, "a removed model is not there")
    assert {role: stack.pids(role) for role in before} == before
    body: dict[str, Any] = answer.json()
    return body


async def _paid_by_the_token(stack: Stack, tenant_id: str) -> None:
    """Every usage row costs its tokens at the price, and the ledger agrees."""
    await settled_everything(stack, tenant_id)
    rate = {name: per_mtok_to_pico_per_token(text) for name, text in PRICE.items()}
    rows = await rows_by_request(stack, tenant_id)
    assert rows
    for row in rows.values():
        cached = row["cached_input_tokens"]
        assert row["model"] == NAME
        assert row["output_tokens"] > 0
        assert row["cost"] == (
            (row["input_tokens"] - cached) * rate["input"]
            + cached * rate["cached_input"]
            + row["output_tokens"] * rate["output"]
        )
    await money_is_sound(stack, tenant_id)
