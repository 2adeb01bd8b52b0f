"""Command line and environment of an engine process."""

import os
import sys
from pathlib import Path

import msgspec

from core.settings import without_credentials
from workers import engine_adapters, engine_guard, stray_engines
from workers.adapter_host import socket_path
from workers.adapter_options import max_adapters
from workers.engine_adapters import ENGINE_VARIABLE, SOCKET_VARIABLE
from workers.engine_tls import KEPT_S, EngineTls
from workers.kv_endpoints import KvEndpoints
from workers.plan import ReplicaPlan

CHECKOUT = Path(__file__).resolve().parent.parent

_CPU_ENV = {
    # Without these, several instances on few cores busy-wait for each other: 16-19 tok/s each instead of 175-268.
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_CI_ENV": "1",
    # Keeps the model inside the engine's core process. In a process of its own, the default on CPU, the core waits for
    # it in a loop of sched_yield, which takes a third of two cores from everything else. vLLM's reason for the default
    # is that it sets the threads of each worker; here OMP_NUM_THREADS does.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
_SIM_VARIABLES = ("PENSTOCK_SIM_FAILPOINTS", "PENSTOCK_SIM_VERSION_FAILPOINTS")
_QUIET_ENV = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_GUARD = f"{engine_guard.__name__}.{engine_guard.EngineGuard.__name__}"
"""Where vLLM imports the guard from: `python -m` looks in its working directory, the checkout, too."""
_ADAPTER_GUARD = f"{engine_adapters.__name__}.{engine_adapters.AdapterGuard.__name__}"
"""The same for an engine that takes adapters, with the way to ask for them."""
_OFFLINE_ENV = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


class EngineCommand(msgspec.Struct, frozen=True):
    """Command line and environment of a process to start."""

    argv: tuple[str, ...]
    env: dict[str, str]
    stop_s: float
    """Seconds between SIGTERM and SIGKILL: the engine's own shutdown timeout and a margin."""


def engine_command(
    plan: ReplicaPlan,
    *,
    host: str,
    port: int,
    engine_env: Path,
    engine_key: str,
    agent_key: str,
    strict: bool = False,
    data_dir: Path,
    sim_speedup: float,
    replicas: int,
    kv: KvEndpoints | None = None,
    entry: Path | None = None,
    tls: EngineTls | None = None,
) -> EngineCommand:
    """The command of a replica's engine, without the platform's secrets in its environment.

    With `strict` nothing is answered without a key.
    `agent_key` opens what the engine's guard keeps from everyone else. `replicas` is the number of replicas on this
    host. With `kv` the engine publishes KV events. `entry` is the file of
    a model that the packaged catalog does not have. With `tls` the engine speaks nothing else.
    """
    env = without_credentials(os.environ, "PENSTOCK_")
    env["VLLM_API_KEY"] = engine_key
    env[engine_guard.KEY_VARIABLE] = agent_key
    if strict:
        env[engine_guard.STRICT_VARIABLE] = engine_key
    takes_adapters = max_adapters(plan.profile)
    if takes_adapters:
        env[SOCKET_VARIABLE], env[ENGINE_VARIABLE] = str(socket_path(data_dir)), plan.replica_id
    env |= stray_engines.mark(data_dir)
    secured: tuple[str, ...] = ()
    if tls is not None:
        secured = ("--ssl-keyfile", str(tls.key_file), "--ssl-certfile", str(tls.certificate_file))
        secured += ("--enable-ssl-refresh",)
        env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = str(KEPT_S)
    if plan.engine == "sim":
        env |= {name: os.environ[name] for name in _SIM_VARIABLES if os.environ.get(name)}
        argv: tuple[str, ...] = (
            sys.executable, "-m", "sim.engine", "--model", plan.model.name, "--profile", plan.profile.name,
            "--speedup", str(sim_speedup), "--host", host, "--port", str(port), *secured,
        )  # fmt: skip
        if plan.spec.version:
            argv = (*argv, "--engine-version", plan.spec.engine_version or plan.spec.version)
        if entry is not None:
            argv = (*argv, "--entry", str(entry))
        if takes_adapters:
            argv = (*argv, "--max-adapters", str(takes_adapters))
        if kv is not None:
            argv = (*argv, "--kv-events-endpoint", kv.events, "--kv-replay-endpoint", kv.replay)
        return EngineCommand(argv, env, stop_s=35.0)
    weights = str(tiny_directory(data_dir)) if plan.model.toy else None
    line = plan.profile.command_line(plan.model, port, host=host, weights=weights, kv=kv)
    env |= _QUIET_ENV | _OFFLINE_ENV | plan.profile.env  # its weights have been prefetched
    if plan.gpu_ids:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(plan.gpu_ids)
    else:
        env |= _CPU_ENV
        if plan.capacity.dp_ranks > 1:  # a rank is a process of its own
            del env["VLLM_ENABLE_V1_MULTIPROCESSING"]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        env["OMP_NUM_THREADS"] = "1" if plan.model.toy else str(max(1, cores // replicas))
    if "enable-sleep-mode" in plan.profile.args:
        env["VLLM_SERVER_DEV_MODE"] = (
            "1"  # enables /sleep and /wake_up, and more: EngineGuard is before all of it
        )
    if takes_adapters:
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"  # EngineGuard is before the paths that it opens
    guard = _ADAPTER_GUARD if takes_adapters else _GUARD
    argv = (
        str(engine_env / "bin" / "python"), "-m", "vllm.entrypoints.cli.main", *line[1:], "--middleware", guard,
        *secured,
    )  # fmt: skip
    timeout = plan.profile.args.get("shutdown-timeout", 30)
    return EngineCommand(argv, env, stop_s=float(timeout if isinstance(timeout, int) else 30) + 10.0)


def cpu_environment(profile_env: dict[str, str]) -> dict[str, str]:
    """Variables that an engine on CPU with a local model needs besides those of this process."""
    return {**_QUIET_ENV, **_OFFLINE_ENV, **_CPU_ENV, "OMP_NUM_THREADS": "1", **profile_env}


def tiny_directory(data_dir: Path) -> Path:
    """The directory of the model penstock/tiny."""
    return data_dir.resolve() / "models" / "penstock-tiny"
