"""What a running platform tells about itself: to other commands, to scripts, and to a person."""

import os
from typing import Any

import msgspec

from cli import payments
from cli.display import Display
from cli.rundir import Secrets
from workers.catalog import load_catalog
from workers.wire import ReplicaStatus


def engine_key(secrets: Secrets) -> str:
    """The bearer key of the engines: PENSTOCK_ENGINE_KEY for an external one, else our own."""
    return os.environ.get("PENSTOCK_ENGINE_KEY") or secrets.engine_key


def secret_facts(secrets: Secrets, *, demo: bool) -> dict[str, str | None]:
    """What opens the platform's doors."""
    return {
        "api_key": secrets.demo_api_key if demo else None,
        "admin_email": secrets.admin_email,
        "admin_password": secrets.admin_password,
        "admin_token": secrets.admin_token,
        "engine_key": engine_key(secrets),
        "internal_token": secrets.internal_token,
        "key_pepper": secrets.key_pepper,
    }


def engine_facts(replicas: list[ReplicaStatus]) -> list[dict[str, str]]:
    """Where each engine answers."""
    return [
        {
            "replica_id": replica.replica_id,
            "model": replica.model,
            "engine": replica.engine,
            "url": replica.url,
            "metrics_url": replica.metrics_url,
        }
        for replica in replicas
    ]


def progress_of(replicas: list[ReplicaStatus]) -> str:
    """One line on replicas that are on their way."""
    return ", ".join(f"{r.replica_id} {r.state}{f': {r.detail}' if r.detail else ''}" for r in replicas)


def show_panel(
    display: Display, facts: dict[str, Any], replicas: list[ReplicaStatus], notes: list[str]
) -> None:
    """The panel at the end of a start, with a curl line that works when pasted."""
    rows = [
        ("API", facts["base_url"]),
        ("API key", facts["api_key"] or "none (--no-demo)"),
        ("Console", facts["console_url"]),
        ("Sign in", f"{facts['admin_email']}  {facts['admin_password']}"),
        ("Model", _model_line(replicas)),
        ("Payments", payments.line(facts)),
        ("Data", facts["data_dir"]),
        ("Stop", "Ctrl-C"),
    ]
    notes = [*notes, *_engine_notes(replicas)]
    display.panel("Penstock is running", rows, notes, _curl(facts))


def _engine_notes(replicas: list[ReplicaStatus]) -> list[str]:
    toys = {name for name, model in load_catalog().models.items() if model.toy}
    if any(replica.simulated for replica in replicas):
        return ["The engine is simulated: its answers are invented."]
    if any(replica.model in toys and replica.engine == "vllm" for replica in replicas):
        return ["A toy model with random weights runs on the real engine: its words mean nothing."]
    return []


def _curl(facts: dict[str, Any]) -> str:
    if not (facts["api_key"] and facts["model"]):
        return ""
    body = {
        "model": facts["model"],
        "max_tokens": 32,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    return (
        f"curl {facts['base_url']}/chat/completions -H 'Authorization: Bearer {facts['api_key']}' "
        f"-H 'Content-Type: application/json' -d '{msgspec.json.encode(body).decode()}'"
    )


def _model_line(replicas: list[ReplicaStatus]) -> str:
    if not replicas:
        return "none"
    kinds = ", ".join(sorted({replica.engine for replica in replicas}))
    return f"{replicas[0].model} ({len(replicas)} x {kinds})"
