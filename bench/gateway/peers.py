"""Other gateways, each installed in an environment of its own: docs/performance.md says how. None is a dependency."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.gateway.mock_engine import MODEL
from core.child import free_port


@dataclass(frozen=True)
class Peer:
    """How one gateway is started in front of one engine, and asked."""

    name: str
    program: str
    """File name of the program in a folder of --peers-bin."""
    command: Callable[[str, int, str, Path], list[str]]
    """Command line for the program, a port, the engine's URL and a folder for its configuration."""
    model: str = MODEL
    key: str = ""
    path: str = "/v1/chat/completions"
    env: dict[str, str] = field(default_factory=dict)
    max_streams: int = 10_000
    """Most streams at the same time that it is measured with."""
    slow: int = 1
    """Its cost per request over that of the others, roughly; it gets as many times fewer requests, and where this is
    above 1 no constant rate and one round only."""


def _vllm_router(program: str, port: int, engine: str, _folder: Path) -> list[str]:
    return [
        program, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", engine, "--policy", "round_robin",
        "--prometheus-port", str(free_port()), "--log-level", "error",
    ]  # fmt: skip


def _sglang_router(program: str, port: int, engine: str, _folder: Path) -> list[str]:
    return [
        program, "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", engine,
        "--policy", "round_robin", "--prometheus-port", str(free_port()), "--log-level", "error",
    ]  # fmt: skip


def _litellm(program: str, port: int, engine: str, folder: Path) -> list[str]:
    config = folder / "litellm.json"
    model = {"model": f"openai/{MODEL}", "api_base": f"{engine}/v1", "api_key": "none"}
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": model}]}))
    return [
        program,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--config",
        str(config),
        "--num_workers",
        "1",
    ]


def _tensorzero(program: str, port: int, engine: str, folder: Path) -> list[str]:
    config = folder / "tensorzero.toml"
    config.write_text(
        f'[gateway]\nbind_address = "127.0.0.1:{port}"\nobservability.enabled = false\n'
        f'[models.bench]\nrouting = ["mock"]\n[models.bench.providers.mock]\ntype = "vllm"\n'
        f'model_name = "{MODEL}"\napi_base = "{engine}/v1/"\napi_key_location = "none"\n'
    )
    return [program, "--config-file", str(config)]


PEERS = (
    Peer("vllm-router", "vllm-router", _vllm_router),
    Peer("sglang-router", "sglang-router", _sglang_router),
    Peer(
        "tensorzero", "tensorzero-gateway", _tensorzero,
        model="tensorzero::model_name::bench", path="/openai/v1/chat/completions", max_streams=512,
    ),
    Peer(
        "litellm", "litellm", _litellm, max_streams=64, slow=8,
        env={
            "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        },
    ),
)  # fmt: skip
