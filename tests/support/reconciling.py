"""Reconciliation of a whole platform: wait until all that its engines counted is compared."""

from typing import Any

from tests.support.stack import Stack
from tests.support.waiting import until


async def reconciled(stack: Stack, timeout_s: float = 90.0) -> list[dict[str, Any]]:
    """Every engine incarnation, once all tokens of the living ones and of the dead are compared."""
    engines: list[dict[str, Any]] = []

    async def all_compared() -> bool:
        nonlocal engines
        counted = stack.engine_counters()  # each time: an engine that has just started still warms up
        alive = sum(int(counted[name]) for name in ("prompt_tokens_total", "generation_tokens_total"))
        stack.admin("POST", "/reconcile/run")
        engines = stack.admin("GET", "/reconcile/engines")["data"]
        living = [one for one in engines if one["ended_at"] is None]
        stored = sum(one["prompt_tokens"] + one["generation_tokens"] for one in living)
        return stored == alive and not any(one["uncompared_tokens"] for one in engines)

    await until(all_compared, timeout_s=timeout_s, what="all tokens of the engines are compared")
    return engines


def stretches(stack: Stack, boot_id: str) -> dict[str, dict[str, int]]:
    """An engine's lines by counter, summed over its stretches."""
    totals: dict[str, dict[str, int]] = {}
    for row in stack.admin("GET", f"/reconcile/engines/{boot_id}", params={"limit": 500})["data"]:
        lines = totals.setdefault(row["counter"], {})
        for name, value in row.items():
            if isinstance(value, int):
                lines[name] = lines.get(name, 0) + value
    return totals
