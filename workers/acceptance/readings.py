"""What an acceptance reads of a host. None stands for a figure that the driver or the board does not have."""

from typing import Literal

import msgspec

FabricState = Literal["ready", "registering", "failed"]
"""Of a GPU's registration with the NVLink fabric: CUDA does not start on it before it is ready."""


class GpuReading(msgspec.Struct, frozen=True):
    """One GPU, as NVML reports it."""

    index: int
    uuid: str = ""
    name: str = ""
    error: str = ""
    """Why it does not answer; empty = it does."""
    clock_limits: int | None = None
    """Bits of the reasons that hold the clocks down (nvmlClocksEventReasons)."""
    ecc_uncorrected: int | None = None
    """Uncorrected memory errors since the driver was loaded."""
    rows_pending: bool | None = None
    """Whether a memory row waits for a reset of the GPU to be remapped."""
    rows_failed: bool | None = None
    """Whether a memory row could not be remapped."""
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    """Lanes in use."""
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    """Transfers over PCIe that were repeated, since the driver was loaded."""
    links_up: int | None = None
    """NVLinks that are up; None = it reports none."""
    links_down: int | None = None
    link_errors: int | None = None
    """Replays and recoveries of all NVLinks, since the driver was loaded."""
    unreachable: tuple[int, ...] = ()
    """Indices of GPUs whose memory it cannot reach directly."""
    fabric: FabricState | None = None
    """None = it is on no fabric."""
    virtualization: int | None = None
    """Mode of virtualisation: 0 none, 1 passed through, 2 and more a virtual GPU."""
    mig: bool | None = None
    """Whether it is partitioned (MIG)."""
    xids: tuple[int, ...] = ()
    """Numbers of the driver's errors (Xid) that came during the checks."""


class DcgmFailure(msgspec.Struct, frozen=True):
    """A test of DCGM that did not pass."""

    test: str
    text: str
    severity: int = 0
    """DCGM's (dcgm_errors.h): 1 monitor, 2 isolate, 4 triage, 5 configuration, 6 reset; 0 = not stated."""
    error_id: int = 0


class DcgmReading(msgspec.Struct, frozen=True):
    """The result of `dcgmi diag`."""

    version: str
    passed: tuple[str, ...]
    """Names of the tests that passed on every GPU."""
    failures: tuple[DcgmFailure, ...]
    error: str = ""
    """Why it could not run; empty = it ran."""


class AllReduceReading(msgspec.Struct, frozen=True):
    """All-reduce over all GPUs of the host, by NVIDIA's nccl-tests."""

    bus_gb_per_s: float
    """Bus bandwidth at the largest size, in GB/s."""
    small_us: float
    """Microseconds of the smallest size."""
    wrong: int = 0
    """Results that were wrong."""
    error: str = ""
    """Why it could not run; empty = it ran."""


class BandwidthReading(msgspec.Struct, frozen=True):
    """One GPU's memory and its way to host memory."""

    index: int
    memory_gb_per_s: float
    """Read and written together, of a copy inside of its memory."""
    to_device_gb_per_s: float
    from_device_gb_per_s: float
    launch_us: float
    """Microseconds from the launch of an empty kernel to its end, as a queue of them shows it."""


class DevicesReading(msgspec.Struct, frozen=True):
    """All GPUs that the engine's PyTorch sees."""

    devices: tuple[BandwidthReading, ...] = ()
    error: str = ""
    """Why they could not be measured; empty = they were."""


class SpeedReading(msgspec.Struct, frozen=True):
    """One user's requests on a fresh engine, beside what the profile's figures say of them."""

    replica_id: str
    prefill_share: float
    """Predicted time of the prompt over the measured one: 1 = as fast as the profile says."""
    decode_share: float
    validated: bool
    """Whether a sweep validates the profile; otherwise the shares judge the figures as much as the host."""

    @property
    def slowest(self) -> float:
        """The smaller share."""
        return min(self.prefill_share, self.decode_share)


class HostReading(msgspec.Struct, frozen=True):
    """All that was read of a host."""

    driver: str = ""
    gpus: tuple[GpuReading, ...] = ()
    error: str = ""
    """Why NVML could not be read; empty = it was."""
    dcgm: DcgmReading | None = None
    """None = not installed, or not run."""
    all_reduce: AllReduceReading | None = None
    bandwidth: DevicesReading | None = None
    """None = no engine with PyTorch is installed, or nothing was measured."""
    loaded: bool = False
    """Whether the GPUs worked while they were read; otherwise their state alone is known."""
    ram_gb: float = 0.0
    """Memory of the host in GB; 0 = not read."""
