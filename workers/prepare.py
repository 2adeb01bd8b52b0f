"""Prepares a host before its first engine starts: GPUs, the engine package, the model to serve, the tiny model."""

import asyncio
import logging
import math
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from core.errors import Unavailable
from core.settings import Settings
from workers import engine_install
from workers.catalog import Catalog
from workers.engine_command import CHECKOUT, tiny_directory
from workers.engine_models import engine_urls
from workers.host_models import is_shared, parse_models, plan_models
from workers.kv_tiers import check_tiers, shared_memory_gb
from workers.machine import find_gpus, hub_has
from workers.plan import SMALL, HostPlan, plan_sim, plan_vllm
from workers.shared_gpus import host_memory_gb
from workers.tiny_model import is_complete
from workers.wire import SIMULATED_HOST

log = logging.getLogger(__name__)


async def prepare(settings: Settings, catalog: Catalog, host_id: str) -> HostPlan:
    """The plan of this host, after installing what it needs. Its kind is the one that the settings name, if any.

    Raises InvalidRequest for settings that cannot be served, and Unavailable when the engine cannot be installed.
    """
    plan = await _planned(settings, catalog, host_id)
    simulated = settings.engine == "sim"
    memory_gb = host_memory_gb(catalog, settings.host_kind or plan.host_kind, simulated=simulated)
    check_tiers(plan.replicas, memory_gb or math.inf, math.inf if simulated else shared_memory_gb())
    kind = stated_kind(settings, catalog)
    return msgspec.structs.replace(plan, host_kind=kind) if kind else plan


def stated_kind(settings: Settings, catalog: Catalog) -> str:
    """The catalog's kind of host that the settings name; empty where they name none, or engines are not the host's."""
    return settings.host_kind if settings.host_kind in catalog.hosts and settings.engine != "external" else ""


async def _planned(settings: Settings, catalog: Catalog, host_id: str) -> HostPlan:
    match settings.engine:
        case "sim" if is_shared(settings.model):
            models = parse_models(settings.model)
            name, kind = f"{SIMULATED_HOST}{host_id}", settings.host_kind
            return plan_models(catalog, name, models, settings.replicas, None, kind)
        case "sim":
            return plan_sim(
                catalog,
                f"{SIMULATED_HOST}{host_id}",
                settings.model,
                settings.replicas,
                profile_name=settings.profile,
                kind=settings.host_kind,
            )
        case "external":
            return HostPlan("external", 0, (), tuple(engine_urls(settings.engine_url)))
        case "auto" | "vllm":
            return await _prepare_vllm(settings, catalog, host_id)


async def _prepare_vllm(settings: Settings, catalog: Catalog, host_id: str) -> HostPlan:
    gpus = await find_gpus()
    stated = catalog.hosts.get(settings.host_kind)
    if stated is not None and stated.gpus and not gpus.ids:
        raise Unavailable(
            f"a host of kind {settings.host_kind} has {stated.gpus} {stated.gpu} GPUs, and nvidia-smi lists none here: "
            "repair the driver or replace the host. No model is served on its CPU"
        )
    if engine_install.status(settings.engine_env).state != "installed":
        log.info("the engine is not installed; installing it into %s", settings.engine_env)
        await _run(sys.executable, "-m", "workers.engine_install", str(settings.engine_env))
    python = settings.engine_env / "bin" / "python"
    hub = False
    if not settings.model and not gpus.ids:
        hub = await hub_has(python, catalog.model(SMALL).hub_id)
        log.info(
            "the hub %s; serving %s", "answers" if hub else "does not answer", SMALL if hub else "a toy model"
        )
    if is_shared(settings.model):
        return plan_models(catalog, host_id, parse_models(settings.model), settings.replicas, gpus)
    plan = plan_vllm(
        catalog,
        host_id,
        settings.model,
        settings.replicas,
        gpus,
        hub_answers=hub,
        profile_name=settings.profile,
    )
    directory = tiny_directory(settings.data_dir)
    if any(replica.model.toy for replica in plan.replicas) and not is_complete(directory):
        await _run(str(python), str(CHECKOUT / "workers" / "tiny_model.py"), str(directory))
    return plan


async def _run(*command: str) -> None:
    """Run a command to its end. Raises Unavailable with its last line of output when it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=CHECKOUT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # ends downloads that it started, too
        raise
    if process.returncode:
        lines = output.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        raise Unavailable(f"{Path(command[0]).name} {' '.join(command[1:4])} failed: {lines[-1]}")
