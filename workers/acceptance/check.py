"""Runs the checks of a host and gives the verdict."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec
import pynvml

from core.clock import Clock
from workers.acceptance import nvml, rules
from workers.acceptance.bandwidth import measure_devices
from workers.acceptance.dcgm import diagnose
from workers.acceptance.nccl import all_reduce
from workers.acceptance.readings import HostReading, SpeedReading
from workers.acceptance.rules import Expected, Finding, Verdict, verdict_of
from workers.catalog import Catalog
from workers.roofline import GPUS

Tell = Callable[[str], None]
"""Takes the name of the step that begins."""


class Acceptance(msgspec.Struct, frozen=True):
    """The result of the checks of a host."""

    verdict: Verdict
    at: datetime
    machine_boot: str
    """The kernel's id of the boot in which they ran."""
    findings: tuple[Finding, ...]
    reading: HostReading
    speeds: tuple[SpeedReading, ...] = ()
    """Of the replicas that have been probed."""

    def with_speed(self, speed: SpeedReading) -> "Acceptance":
        """The result with one replica's speed, which may make the verdict worse; an older one of it is replaced."""
        others = tuple(each for each in self.speeds if each.replica_id != speed.replica_id)
        findings = tuple(each for each in self.findings if each.check != "speed")
        speeds = (*others, speed)
        for each in speeds:
            findings += rules.judge_speed(each)
        return msgspec.structs.replace(self, findings=findings, speeds=speeds, verdict=verdict_of(findings))


def expected_of(catalog: Catalog, host_kind: str) -> Expected:
    """What a host of a kind has. A kind that the catalog does not know is judged by what it reports alone."""
    kind = catalog.hosts.get(host_kind)
    if kind is None:
        return Expected(gpus=0)
    gpu = GPUS.get(kind.gpu)
    return Expected(
        gpus=kind.gpus,
        gpu=kind.gpu,
        memory_gb_per_s=gpu.bytes_per_s / 1e9 if gpu is not None else 0.0,
        link_gb_per_s=gpu.link_bytes_per_s / 1e9 if gpu is not None and kind.gpus > 1 else 0.0,
    )


async def check_host(
    expected: Expected,
    *,
    engine_env: Path,
    machine_boot: str,
    clock: Clock,
    load: bool = True,
    tell: Tell = lambda _: None,
) -> Acceptance:
    """Check the host's GPUs; takes up to a few minutes. `load` False = only what disturbs no engine that runs."""
    try:
        before, after = await _read(engine_env, load, tell)
    except pynvml.NVMLError as error:
        before = after = HostReading(error=str(error))
    findings = rules.judge(before, after, expected)
    return Acceptance(verdict_of(findings), clock.now(), machine_boot, findings, after)


async def _read(engine_env: Path, load: bool, tell: Tell) -> tuple[HostReading, HostReading]:
    with nvml.opened() as driver:
        tell("reading the GPUs")
        before = HostReading(driver.driver, await asyncio.to_thread(driver.read))
        if not load:
            return before, before
        tell("DCGM, level 2: up to two minutes")
        dcgm = await diagnose()
        tell("all-reduce over all GPUs")
        reduced = await all_reduce(len(before.gpus))
        tell("memory and PCIe bandwidth")
        bandwidth = await measure_devices(engine_env)
        tell("reading the GPUs again")
        gpus = await asyncio.to_thread(driver.read)  # at once, while PCIe runs at its full speed
    return before, HostReading(
        before.driver,
        gpus,
        dcgm=dcgm,
        all_reduce=reduced,
        bandwidth=bandwidth,
        loaded=bool(bandwidth),
    )
