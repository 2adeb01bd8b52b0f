"""Judges what was read of a host; pure functions.

Every finding says which GPU or test it is about, what was found and what to do. `refused`: the host serves nothing.
`degraded`: it serves, with the capacity that was measured where one was. `note`: nothing follows from it.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from workers.acceptance.readings import (
    DcgmFailure,
    DcgmReading,
    GpuReading,
    HostReading,
    SpeedReading,
)

Severity = Literal["note", "degraded", "refused"]
Verdict = Literal["accepted", "degraded", "refused"]

CLOCK_LIMITS = {
    0x08: "a hardware slowdown",
    0x20: "the driver's thermal limit",
    0x40: "a hardware thermal limit",
    0x80: "the power brake",
}
"""Bits of nvmlClocksEventReasons that a healthy host does not show; a power cap (0x4) is usual under load."""
BROKEN_XIDS = frozenset({48, 64, 74, 79, 95, 119, 120, 140, *range(144, 151), 154})
"""Errors of hardware or firmware after which a GPU is reset or replaced (NVIDIA, "XID Errors"): double-bit ECC, a row
that could not be remapped, NVLink, fallen off the bus, uncontained ECC, GSP time-out and error, unrecovered ECC, NVLink
of the fifth generation, and a recovery that the driver asks for."""
WORN_XIDS = frozenset({63, 92, 94})
"""A row was remapped, many single-bit errors, contained ECC error: the GPU works on."""
DCGM_MILD = frozenset({1, 5})
"""Severities of DCGM (dcgm_errors.h) of what is to be watched, and of settings."""
DCGM_NOTES = frozenset({29})
"""Numbers of DCGM's errors (dcgm_errors.h) that slow nothing: persistence mode is off."""
REPLAYS_MAX = 10
"""Repeated PCIe transfers during the checks; a sound link has none or a few."""
MEMORY_SHARE = 0.7
"""Least share of the data sheet's memory bandwidth; a copy reaches 0.8 or more (docs/simulator.md)."""
RAM_SHARE = 0.9
"""Share of the stated memory of a kind of host below which a host is noted: its firmware and kernel keep some."""
PCIE_SHARE = 0.6
"""Least share of the PCIe link's own bandwidth; pinned copies reach 0.8 or more."""
PCIE_GB_PER_S_LANE = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of a lane by generation, after its encoding (PCI-SIG)."""
BUS_DEGRADED, BUS_REFUSED = 0.8, 0.6
"""Shares of NVLink's rate for the bus bandwidth of an all-reduce: eight H100 reach 460 to 480 GB/s of 450 where the
switches add (NVLS), and about 360 where they do not, as in many virtual machines."""
SMALLER_BOARDS = ("PCIe", "NVL")
"""In the names of boards that are slower than the module of that name, whose data sheet is known."""
SMALL_ALL_REDUCE_US = 60.0
"""Longest time of an all-reduce of eight bytes in one host. The catalog's figures assume 10 us inside of a CUDA graph;
a launch by itself takes 15 to 30 us."""
SPEED_DEGRADED, SPEED_REFUSED = 0.8, 0.3
"""Shares of a validated profile's speed below which a replica serves with what was measured, and not at all."""


class Expected(msgspec.Struct, frozen=True):
    """What a host of its kind has."""

    gpus: int
    """0 = not known."""
    gpu: str = ""
    memory_gb_per_s: float = 0.0
    """Of one GPU, by its data sheet; 0 = not known."""
    link_gb_per_s: float = 0.0
    """Of one GPU's NVLinks, one way; 0 = not known, or none."""
    ram_gb: float = 0.0
    """Memory of the host; 0 = not known."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was found."""

    severity: Severity
    check: str
    """A short name, such as memory or pcie."""
    text: str


def verdict_of(findings: tuple[Finding, ...]) -> Verdict:
    """The worst of the findings."""
    severities = {finding.severity for finding in findings}
    return "refused" if "refused" in severities else "degraded" if "degraded" in severities else "accepted"


def judge(before: HostReading, after: HostReading, expected: Expected) -> tuple[Finding, ...]:
    """Findings on a host from its state before and after the load of the checks; `after` has the measurements."""
    if after.error:
        return (Finding("refused", "gpus", f"the driver does not answer: {after.error}"),)
    found = [*_count(after, expected), *_host_memory(after, expected)]
    earlier = {gpu.index: gpu for gpu in before.gpus}
    for gpu in after.gpus:
        if gpu.error:
            found.append(Finding("refused", "gpus", f"GPU {gpu.index} does not answer: {gpu.error}"))
        first = earlier.get(gpu.index, gpu)
        found += _memory(gpu)
        found += _clocks(gpu)
        found += _pcie(gpu, first, loaded=after.loaded)
        found += _links(gpu, first, expected, alone=len(after.gpus) == 1)
        found += _driver(gpu)
    if not after.loaded:
        found.append(Finding("note", "load", "engines ran, so that nothing was measured"))
        return tuple(found)
    found += _dcgm(after.dcgm)
    found += _all_reduce(after, expected)
    found += _bandwidth(after, expected)
    return tuple(found)


def judge_speed(speed: SpeedReading) -> tuple[Finding, ...]:
    """Findings on one replica's speed, which refuse that replica at most, never its host.

    Where no sweep validates the profile, the speed is noted only.
    """
    text = (
        f"{speed.replica_id} computes a prompt at {speed.prefill_share:.0%} and an answer at "
        f"{speed.decode_share:.0%} of the speed that its profile states"
    )
    if not speed.validated:
        return (Finding("note", "speed", f"{text}, which no sweep validates"),)
    if speed.slowest < SPEED_REFUSED:
        return (Finding("degraded", "speed", f"{text}: it does not serve"),)
    if speed.slowest < SPEED_DEGRADED:
        return (Finding("degraded", "speed", f"{text}: it serves with what was measured"),)
    return ()


def _count(host: HostReading, expected: Expected) -> Iterator[Finding]:
    if not host.gpus:
        yield Finding("refused", "gpus", "the driver lists no GPU")
    elif len(host.gpus) < expected.gpus:
        yield Finding("refused", "gpus", f"{len(host.gpus)} of {expected.gpus} GPUs answer; replace the host")
    others = sorted({gpu.name for gpu in host.gpus if gpu.name and expected.gpu not in gpu.name})
    if others:
        yield Finding("refused", "gpus", f"a GPU is {others[0]!r}, and this kind of host has {expected.gpu}")


def _host_memory(host: HostReading, expected: Expected) -> Iterator[Finding]:
    if 0.0 < host.ram_gb < RAM_SHARE * expected.ram_gb:
        text = f"the host has {host.ram_gb:.0f} GB of memory, and {expected.ram_gb:.0f} GB are stated for its kind"
        yield Finding("note", "host memory", f"{text}: less is left for kv_offload and for sleeping replicas")


def _memory(gpu: GpuReading) -> Iterator[Finding]:
    if gpu.ecc_uncorrected:
        yield Finding(
            "refused",
            "memory",
            f"GPU {gpu.index} has {gpu.ecc_uncorrected} uncorrected memory errors; reset it or replace the host",
        )
    if gpu.rows_failed:
        yield Finding("refused", "memory", f"GPU {gpu.index} could not remap a memory row; replace the host")
    elif gpu.rows_pending:
        yield Finding("degraded", "memory", f"GPU {gpu.index} has a memory row to remap; reset it")


def _clocks(gpu: GpuReading) -> Iterator[Finding]:
    reasons = [text for bit, text in CLOCK_LIMITS.items() if (gpu.clock_limits or 0) & bit]
    if reasons:
        yield Finding("degraded", "clocks", f"GPU {gpu.index} is slowed by {' and '.join(reasons)}")


def _pcie(gpu: GpuReading, first: GpuReading, *, loaded: bool) -> Iterator[Finding]:
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        yield Finding(
            "degraded", "pcie", f"GPU {gpu.index} uses {gpu.pcie_width} of {gpu.pcie_width_max} PCIe lanes"
        )
    slow = gpu.pcie_generation and gpu.pcie_generation_max and gpu.pcie_generation < gpu.pcie_generation_max
    if loaded and slow:  # an idle GPU saves power with a slower link
        yield Finding(
            "degraded",
            "pcie",
            f"GPU {gpu.index} runs PCIe {gpu.pcie_generation} under load, and can run {gpu.pcie_generation_max}",
        )
    repeated = (gpu.pcie_replays or 0) - (first.pcie_replays or 0)
    if repeated > REPLAYS_MAX:
        yield Finding(
            "degraded", "pcie", f"GPU {gpu.index} repeated {repeated} PCIe transfers during the checks"
        )


def _links(gpu: GpuReading, first: GpuReading, expected: Expected, *, alone: bool) -> Iterator[Finding]:
    worse: Severity = "note" if alone else "degraded"  # one GPU alone sends nothing over NVLink
    if gpu.links_up is None and not gpu.error and expected.link_gb_per_s and _is_module(gpu):
        yield Finding(worse, "nvlink", f"GPU {gpu.index} reports no NVLink")
    if gpu.links_down:
        total = gpu.links_down + (gpu.links_up or 0)
        yield Finding(worse, "nvlink", f"GPU {gpu.index}: {gpu.links_down} of {total} NVLinks are down")
    errors = (gpu.link_errors or 0) - (first.link_errors or 0)
    if errors > 0:
        yield Finding(worse, "nvlink", f"GPU {gpu.index}: its NVLinks had {errors} errors during the checks")
    if gpu.unreachable:
        others = ", ".join(str(other) for other in gpu.unreachable)
        yield Finding(
            "degraded", "p2p", f"GPU {gpu.index} cannot read the memory of GPU {others} directly (ACS, IOMMU)"
        )
    if gpu.fabric is not None and gpu.fabric != "ready":
        yield Finding(
            "refused",
            "fabric",
            f"GPU {gpu.index} is not on the NVLink fabric ({gpu.fabric}); see nvidia-fabricmanager",
        )


def _is_module(gpu: GpuReading) -> bool:
    """Whether it is the module that the data sheet is of."""
    return not any(mark in gpu.name for mark in SMALLER_BOARDS)


def _driver(gpu: GpuReading) -> Iterator[Finding]:
    if gpu.mig:
        yield Finding("refused", "mig", f"GPU {gpu.index} is partitioned (MIG); profiles need whole GPUs")
    if gpu.virtualization is not None and gpu.virtualization > 1:
        yield Finding("note", "virtualization", f"GPU {gpu.index} is a virtual GPU")
    for xid in sorted(set(gpu.xids)):
        times = gpu.xids.count(xid)
        severity: Severity = "refused" if xid in BROKEN_XIDS else "degraded" if xid in WORN_XIDS else "note"
        yield Finding(
            severity, "xid", f"GPU {gpu.index}: the driver reported Xid {xid} {times} times during the checks"
        )


def _dcgm(reading: DcgmReading | None) -> Iterator[Finding]:
    if reading is None:
        yield Finding("note", "dcgm", "DCGM is not installed")
    elif reading.error:
        yield Finding("degraded", "dcgm", f"DCGM could not run: {reading.error}")
    else:
        for failure in reading.failures:
            yield Finding(_severity(failure), "dcgm", f"{failure.test} failed: {failure.text}")


def _severity(failure: DcgmFailure) -> Severity:
    if failure.error_id in DCGM_NOTES:
        return "note"
    return "degraded" if failure.severity in DCGM_MILD else "refused"


def _all_reduce(host: HostReading, expected: Expected) -> Iterator[Finding]:
    reading = host.all_reduce
    if len(host.gpus) < 2:
        return
    if reading is None:
        yield Finding("note", "all_reduce", "nccl-tests are not installed")
    elif reading.error:
        yield Finding("refused", "all_reduce", f"the GPUs cannot exchange data: {reading.error}")
    elif reading.wrong:
        yield Finding("refused", "all_reduce", f"{reading.wrong} results of all-reduces are wrong")
    else:
        rate = expected.link_gb_per_s if all(map(_is_module, host.gpus)) else 0.0
        if reading.bus_gb_per_s < BUS_DEGRADED * rate:
            yield Finding(
                "refused" if reading.bus_gb_per_s < BUS_REFUSED * rate else "degraded",
                "all_reduce",
                f"all-reduce reaches {reading.bus_gb_per_s:.0f} GB/s; a sound host reaches "
                f"{BUS_DEGRADED * rate:.0f} or more",
            )
        if reading.small_us > SMALL_ALL_REDUCE_US:
            yield Finding(
                "degraded",
                "all_reduce",
                f"an all-reduce of 8 bytes takes {reading.small_us:.0f} us; {SMALL_ALL_REDUCE_US:.0f} are the most",
            )


def _bandwidth(host: HostReading, expected: Expected) -> Iterator[Finding]:
    measured = host.bandwidth
    if measured is None:
        yield Finding("note", "bandwidth", "memory bandwidth was not measured: there is no engine yet")
        return
    if measured.error:
        yield Finding("refused", "bandwidth", f"PyTorch cannot use the GPUs: {measured.error}")
        return
    if len(measured.devices) < len(host.gpus):
        yield Finding(
            "refused", "bandwidth", f"PyTorch sees {len(measured.devices)} of {len(host.gpus)} GPUs"
        )
    for gpu, each in zip(host.gpus, measured.devices, strict=False):
        least = MEMORY_SHARE * expected.memory_gb_per_s if _is_module(gpu) else 0.0
        if each.memory_gb_per_s < least:
            yield Finding(
                "degraded",
                "bandwidth",
                f"GPU {gpu.index} copies {each.memory_gb_per_s:.0f} GB/s inside of its memory; "
                f"{least:.0f} are the least",
            )
        lane = PCIE_GB_PER_S_LANE.get(gpu.pcie_generation_max or 0, 0.0)
        least = PCIE_SHARE * lane * (gpu.pcie_width_max or 0)
        slowest = min(each.to_device_gb_per_s, each.from_device_gb_per_s)
        if slowest < least:
            yield Finding(
                "degraded",
                "bandwidth",
                f"GPU {gpu.index} copies {slowest:.0f} GB/s from or to host memory; {least:.0f} are the least",
            )
