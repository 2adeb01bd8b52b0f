"""Judges what was read of a host; pure functions.

Every finding says which GPU or test it is about, what was found and what to do. `refused`: the host serves nothing.
`degraded`: it serves, with the capacity that was measured where one was. `note`: nothing follows from it.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from workers.acceptance.readings import (
    AllReduceReading,
    BandwidthReading,
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
BROKEN_XIDS = frozenset({48, 64, 74, 79, 95, 119, 120, 140})
"""Errors of hardware or firmware after which a GPU is reset or replaced (NVIDIA, "XID Errors"): double-bit ECC, a row
that could not be remapped, NVLink, fallen off the bus, uncontained ECC, GSP time-out and error, unrecovered ECC."""
WORN_XIDS = frozenset({63, 92, 94})
"""A row was remapped, many single-bit errors, contained ECC error: the GPU works on."""
DCGM_NOTES = frozenset({1, 5})
"""Severities of DCGM (dcgm_errors.h) that condemn nothing: to be watched, and a setting such as persistence mode."""
REPLAYS_MAX = 10
"""Repeated PCIe transfers during the checks; a sound link has none or a few."""
MEMORY_SHARE = 0.7
"""Least share of the data sheet's memory bandwidth; a copy reaches 0.8 or more (docs/simulator.md)."""
PCIE_SHARE = 0.6
"""Least share of the PCIe link's own bandwidth; pinned copies reach 0.8 or more."""
PCIE_GB_PER_S_LANE = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of a lane by generation, after its encoding (PCI-SIG)."""
BUS_SHARE = 0.8
"""Least share of NVLink's rate for the bus bandwidth of an all-reduce: eight H100 reach 460 to 480 GB/s of 450, since
the switches add, and hosts 20 % below are refused by those who run many."""
SMALL_ALL_REDUCE_US = 60.0
"""Longest time of an all-reduce of eight bytes in one host. The catalog's figures assume 10 us inside of a CUDA graph;
a launch by itself takes 15 to 30 us."""
SPEED_DEGRADED, SPEED_REFUSED = 0.8, 0.3
"""Shares of a validated profile's speed below which a host serves with what was measured, and not at all."""


class Expected(msgspec.Struct, frozen=True):
    """What a host of its kind has."""

    gpus: int
    """0 = not known."""
    gpu: str = ""
    memory_gb_per_s: float = 0.0
    """Of one GPU, by its data sheet; 0 = not known."""
    link_gb_per_s: float = 0.0
    """Of one GPU's NVLinks, one way; 0 = not known, or none."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was found."""

    severity: Severity
    check: str
    """A short name: gpus, clocks, memory, pcie, nvlink, p2p, fabric, mig, xid, dcgm, all_reduce, bandwidth, speed."""
    text: str


def verdict_of(findings: tuple[Finding, ...]) -> Verdict:
    """The worst of the findings."""
    severities = {finding.severity for finding in findings}
    return "refused" if "refused" in severities else "degraded" if "degraded" in severities else "accepted"


def judge(before: HostReading, after: HostReading, expected: Expected) -> tuple[Finding, ...]:
    """Findings on a host from its state before and after the load of the checks; `after` has the measurements."""
    if after.error:
        return (Finding("refused", "gpus", f"the driver does not answer: {after.error}"),)
    found = list(_count(after, expected))
    replays = {gpu.index: gpu.pcie_replays for gpu in before.gpus}
    for gpu in after.gpus:
        found += _memory(gpu)
        found += _clocks(gpu)
        found += _pcie(gpu, replays.get(gpu.index), loaded=after.loaded)
        found += _links(gpu, alone=len(after.gpus) == 1)
        found += _driver(gpu)
    found += _dcgm(after.dcgm)
    found += _all_reduce(after.all_reduce, expected, gpus=len(after.gpus))
    found += _bandwidth(after, expected)
    return tuple(found)


def judge_speed(speed: SpeedReading) -> tuple[Finding, ...]:
    """Findings on one replica's speed. Where no sweep validates the profile, it is noted only."""
    slowest = min(speed.prefill_share, speed.decode_share)
    text = (
        f"{speed.replica_id} computes a prompt at {speed.prefill_share:.0%} and an answer at "
        f"{speed.decode_share:.0%} of the speed that its profile states"
    )
    if not speed.validated:
        return (Finding("note", "speed", f"{text}, which no sweep validates"),)
    if slowest < SPEED_REFUSED:
        return (Finding("refused", "speed", text),)
    if slowest < SPEED_DEGRADED:
        return (Finding("degraded", "speed", f"{text}; it serves with what was measured"),)
    return ()


def _count(host: HostReading, expected: Expected) -> Iterator[Finding]:
    if not host.gpus:
        yield Finding("refused", "gpus", "the driver lists no GPU")
    elif len(host.gpus) < expected.gpus:
        yield Finding("refused", "gpus", f"{len(host.gpus)} of {expected.gpus} GPUs answer; replace the host")
    others = sorted({gpu.name for gpu in host.gpus if expected.gpu and expected.gpu not in gpu.name})
    if others:
        yield Finding("refused", "gpus", f"a GPU is {others[0]!r}, and this kind of host has {expected.gpu}")


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


def _pcie(gpu: GpuReading, replays_before: int | None, *, loaded: bool) -> Iterator[Finding]:
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
    repeated = (gpu.pcie_replays or 0) - (replays_before or 0)
    if replays_before is not None and repeated > REPLAYS_MAX:
        yield Finding(
            "degraded", "pcie", f"GPU {gpu.index} repeated {repeated} PCIe transfers during the checks"
        )


def _links(gpu: GpuReading, *, alone: bool) -> Iterator[Finding]:
    worse: Severity = "note" if alone else "degraded"  # one GPU alone sends nothing over NVLink
    if gpu.links_down:
        total = gpu.links_down + (gpu.links_up or 0)
        yield Finding(worse, "nvlink", f"GPU {gpu.index}: {gpu.links_down} of {total} NVLinks are down")
    if gpu.link_errors:
        yield Finding(
            worse, "nvlink", f"GPU {gpu.index}: its NVLinks count {gpu.link_errors} errors and recoveries"
        )
    if gpu.unreachable:
        others = ", ".join(str(other) for other in gpu.unreachable)
        yield Finding(
            "degraded", "p2p", f"GPU {gpu.index} cannot read the memory of GPU {others} directly (ACS, IOMMU)"
        )
    if gpu.fabric is not None and gpu.fabric != "ready":
        yield Finding(
            "refused",
            "fabric",
            f"GPU {gpu.index} is not on the NVLink fabric ({gpu.fabric}); start nvidia-fabricmanager",
        )


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
        yield Finding("note", "dcgm", "DCGM is not installed or was not run")
    elif reading.error:
        yield Finding("degraded", "dcgm", f"DCGM could not run: {reading.error}")
    else:
        for failure in reading.failures:
            severity: Severity = "note" if failure.severity in DCGM_NOTES else "refused"
            yield Finding(severity, "dcgm", f"{failure.test} failed: {failure.text}")


def _all_reduce(reading: AllReduceReading | None, expected: Expected, *, gpus: int) -> Iterator[Finding]:
    if gpus < 2:
        return
    if reading is None:
        yield Finding("note", "all_reduce", "nccl-tests are not installed or were not run")
    elif reading.error:
        yield Finding("refused", "all_reduce", f"the GPUs cannot exchange data: {reading.error}")
    elif reading.wrong:
        yield Finding("refused", "all_reduce", f"{reading.wrong} results of all-reduces are wrong")
    else:
        least = BUS_SHARE * expected.link_gb_per_s
        if reading.bus_gb_per_s < least:
            yield Finding(
                "refused",
                "all_reduce",
                f"all-reduce reaches {reading.bus_gb_per_s:.0f} GB/s; this kind of host has {least:.0f} or more",
            )
        if reading.small_us > SMALL_ALL_REDUCE_US:
            yield Finding(
                "degraded",
                "all_reduce",
                f"an all-reduce of 8 bytes takes {reading.small_us:.0f} us; {SMALL_ALL_REDUCE_US:.0f} are the most",
            )


def _bandwidth(host: HostReading, expected: Expected) -> Iterator[Finding]:
    if host.gpus and not host.bandwidth:
        yield Finding(
            "note", "bandwidth", "memory bandwidth was not measured: no engine with PyTorch, or busy"
        )
    links = {gpu.index: gpu for gpu in host.gpus}
    for each in host.bandwidth:
        yield from _memory_bandwidth(each, expected)
        gpu = links.get(each.index)
        lane = PCIE_GB_PER_S_LANE.get(gpu.pcie_generation_max or 0) if gpu is not None else None
        if gpu is None or lane is None or not gpu.pcie_width_max:
            continue
        least = PCIE_SHARE * lane * gpu.pcie_width_max
        slowest = min(each.to_device_gb_per_s, each.from_device_gb_per_s)
        if slowest < least:
            yield Finding(
                "degraded",
                "bandwidth",
                f"GPU {each.index} copies {slowest:.0f} GB/s from or to host memory; {least:.0f} are the least",
            )


def _memory_bandwidth(each: BandwidthReading, expected: Expected) -> Iterator[Finding]:
    least = MEMORY_SHARE * expected.memory_gb_per_s
    if each.memory_gb_per_s < least:
        yield Finding(
            "degraded",
            "bandwidth",
            f"GPU {each.index} copies {each.memory_gb_per_s:.0f} GB/s inside of its memory; "
            f"{least:.0f} are the least",
        )
