"""Runs the checks of a host and gives the verdict."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import msgspec
import pynvml

from core.clock import Clock
from core.errors import Conflict
from workers.acceptance import nvml, rules
from workers.acceptance.bandwidth import measure_devices
from workers.acceptance.dcgm import diagnose
from workers.acceptance.nccl import all_reduce
from workers.acceptance.readings import GpuReading, HostReading, SpeedReading
from workers.acceptance.rules import Expected, Finding, Verdict, verdict_of
from workers.catalog import Catalog
from workers.roofline import GPUS
from workers.shared_gpus import machine_memory_gb

SAMPLE_S = 0.25
"""Seconds between two looks at clocks and PCIe while the GPUs work."""
FABRIC_S, FABRIC_POLL_S = 120.0, 2.0
"""Seconds that GPUs get to register with the fabric, and between two looks."""

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


def expected_of(catalog: Catalog, host_kind: str, *, gpus: int | None = None) -> Expected:
    """What a host of a kind has, with `gpus` of them where that is known better than by the kind.

    A kind that the catalog does not know is judged by what it reports alone.
    """
    kind = catalog.hosts.get(host_kind)
    if kind is None:
        return Expected(gpus=gpus or 0)
    gpu = GPUS.get(kind.gpu)
    count = kind.gpus if gpus is None else gpus
    return Expected(
        gpus=count,
        gpu=kind.gpu,
        memory_gb_per_s=gpu.bytes_per_s / 1e9 if gpu is not None else 0.0,
        link_gb_per_s=gpu.link_bytes_per_s / 1e9 if gpu is not None and count > 1 else 0.0,
        ram_gb=kind.ram_gb.value if kind.ram_gb is not None else 0.0,
    )


async def check_host(
    expected: Expected,
    *,
    engine_env: Path,
    machine_boot: str,
    clock: Clock,
    load: bool = True,
    only: Sequence[int] | None = None,
    tell: Tell = lambda _: None,
) -> Acceptance:
    """Check the host's GPUs; takes up to a few minutes.

    `load` False = only what disturbs no engine that runs; `only` the GPUs with these indices. Raises Conflict when
    something else uses the GPUs that are to be loaded.
    """
    try:
        before, after = await _read(engine_env, load, only, tell)
    except pynvml.NVMLError as error:
        before = after = HostReading(error=str(error))
    after = msgspec.structs.replace(after, ram_gb=machine_memory_gb())
    findings = rules.judge(before, after, expected)
    return Acceptance(verdict_of(findings), clock.now(), machine_boot, findings, after)


async def _read(
    engine_env: Path, load: bool, only: Sequence[int] | None, tell: Tell
) -> tuple[HostReading, HostReading]:
    with nvml.opened(only) as driver:
        tell("reading the GPUs")
        before = HostReading(driver.driver, await _on_the_fabric(driver))
        if not load:
            driver.sample()
            return before, msgspec.structs.replace(before, gpus=driver.read())
        if busy := driver.processes():
            index, pids = next(iter(busy.items()))
            raise Conflict(f"GPU {index} is used by process {pids[0]}: end it, or check with --busy")
        sampling = asyncio.create_task(_sample(driver))
        try:
            tell("DCGM, level 2: up to two minutes")
            dcgm = await diagnose(only)
            tell("all-reduce over all GPUs")
            reduced = await all_reduce(len(before.gpus))
            tell("memory and PCIe bandwidth")
            bandwidth = await measure_devices(engine_env)
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
        worked = dcgm is not None or reduced is not None or bandwidth is not None
        tell("reading the GPUs again")
        gpus = tuple(
            each if worked else msgspec.structs.replace(each, pcie_generation=None) for each in driver.read()
        )
    return before, HostReading(
        before.driver, gpus, dcgm=dcgm, all_reduce=reduced, bandwidth=bandwidth, loaded=True
    )


async def _sample(driver: nvml.Nvml) -> None:
    while True:
        driver.sample()
        await asyncio.sleep(SAMPLE_S)


async def _on_the_fabric(driver: nvml.Nvml) -> tuple[GpuReading, ...]:
    """The GPUs, once none registers with the NVLink fabric any more: after a boot that takes a while."""
    for _ in range(int(FABRIC_S / FABRIC_POLL_S)):
        gpus = driver.read()
        if all(gpu.fabric != "registering" for gpu in gpus):
            return gpus
        await asyncio.sleep(FABRIC_POLL_S)
    return driver.read()
