"""Information on a running platform for other commands, scripts and the start panel."""

import os
from typing import Any

import msgspec

from cli import stripe_setup
from cli.display import Display
from cli.rundir import Secrets
from workers.catalog import load_catalog
from workers.wire import ReplicaStatus

MODELS_SHOWN = 5
"""Names of models that the start panel shows."""


def engine_key(secrets: Secrets) -> str:
    """The bearer key of the engines that Penstock runs: PENSTOCK_ENGINE_KEY, else the data directory's."""
    return os.environ.get("PENSTOCK_ENGINE_KEY") or secrets.engine_key


def credentials(secrets: Secrets, *, demo: bool, external: bool) -> dict[str, str | None]:
    """Keys, tokens and the admin's sign-in; `demo` adds the demo organisation's API key.

    The key of `external` engines is the operator's secret and is left out.
    """
    return {
        "api_key": secrets.demo_api_key if demo else None,
        "admin_email": secrets.admin_email,
        "admin_password": secrets.admin_password,
        "admin_token": secrets.admin_token,
        "engine_key": None if external else engine_key(secrets),
        "internal_token": secrets.internal_token,
        "key_pepper": secrets.key_pepper,
    }


def engine_endpoints(replicas: list[ReplicaStatus]) -> list[dict[str, str]]:
    """Addresses of the engines by replica."""
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


def replica_progress(replicas: list[ReplicaStatus]) -> str:
    """The replicas' states as one line."""
    return ", ".join(f"{r.replica_id} {r.state}{f': {r.detail}' if r.detail else ''}" for r in replicas)


def show_panel(
    display: Display, info: dict[str, Any], replicas: list[ReplicaStatus], notes: list[str]
) -> None:
    """Show the panel at the end of a start, with a curl command of a first request.

    Secrets are shown on a terminal alone: elsewhere the output is kept, as in a journal that others may read.
    """
    info = info if display.interactive else {**info, **_hidden(info)}
    rows = [
        ("API", info["base_url"]),
        ("API key", info["api_key"] or "none (--no-demo)"),
        ("Console", info["console_url"]),
        ("Sign in", f"{info['admin_email']}  {info['admin_password']}"),
        ("Model", _model_line(replicas)),
        ("Payments", stripe_setup.panel_line(info)),
        ("Data", info["data_dir"]),
        ("Stop", "Ctrl-C"),
    ]
    notes = [*notes, *_engine_notes(replicas)]
    display.panel("Penstock is running", rows, notes, _curl(info) if display.interactive else "")


def _hidden(info: dict[str, Any]) -> dict[str, Any]:
    """What stands in place of secrets where they are not shown."""
    where = f"in {info['data_dir']}/runtime.json"
    shown = {"admin_password": f"(admin_password {where})"}
    return shown | ({"api_key": f"(api_key {where})"} if info["api_key"] else {})


def _engine_notes(replicas: list[ReplicaStatus]) -> list[str]:
    toys = {name for name, model in load_catalog().models.items() if model.toy}
    if any(replica.simulated for replica in replicas):
        return ["The engine is simulated: its answers are invented."]
    if any(replica.model in toys and replica.engine == "vllm" for replica in replicas):
        return ["A toy model with random weights runs on the real engine: its words mean nothing."]
    return []


def _curl(info: dict[str, Any]) -> str:
    if not (info["api_key"] and info["model"]):
        return ""
    body = {
        "model": info["model"],
        "max_tokens": 32,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    return (
        f"curl {info['base_url']}/chat/completions -H 'Authorization: Bearer {info['api_key']}' "
        f"-H 'Content-Type: application/json' -d '{msgspec.json.encode(body).decode()}'"
    )


def _model_line(replicas: list[ReplicaStatus]) -> str:
    if not replicas:
        return "none"
    kinds = ", ".join(sorted({replica.engine for replica in replicas}))
    models = list(dict.fromkeys(replica.model for replica in replicas))
    more = f" and {len(models) - MODELS_SHOWN} more" if len(models) > MODELS_SHOWN else ""
    return f"{', '.join(models[:MODELS_SHOWN])}{more} ({len(replicas)} x {kinds})"
