"""Reads the state of NVIDIA GPUs through the driver's library, with NVIDIA's own binding.

Its calls may block for ever where a GPU hangs: whoever must go on runs them in another process (gate.py).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from ctypes import byref
from typing import Any

import msgspec
import pynvml

from workers.acceptance.readings import FabricState, GpuReading

MAX_XIDS = 64
"""Errors of the driver that are kept of one check."""
XID_WAIT_MS = 10
SAMPLES = 2
"""Samples that must show a limit of the clocks: one alone may fall into a change of the performance state."""

_WITHHELD = (
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_TIMEOUT,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
)
"""Errors that say that a figure cannot be had; any other is a fault of the GPU or the driver."""
_P2P_READ = 0
"""nvmlGpuP2PCapsIndex_t of reads; NVML_P2P_CAPS_INDEX_READ of the binding is a tuple by mistake (13.615)."""
_P2P_BLOCKED = (
    pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED,
    pynvml.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED,
    pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY,
)
"""States of direct access that a GPU which has it does not show."""
_LINK_ERRORS = (pynvml.NVML_NVLINK_ERROR_DL_REPLAY, pynvml.NVML_NVLINK_ERROR_DL_RECOVERY)


class _Gpu:
    """One GPU, with what was sampled of it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self.handle))
        self.limits: Counter[int] = Counter()
        """By bit, the samples that showed it."""
        self.generation = 0
        self.xids: list[int] = []

    def sample(self) -> None:
        """Note what changes with the load."""
        found = _ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, self.handle) or 0
        self.limits.update(1 << bit for bit in range(64) if found >> bit & 1)
        generation = _ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, self.handle) or 0
        self.generation = max(self.generation, generation)


class Nvml:
    """An open NVML. Every figure that a board or driver does not have is None."""

    def __init__(self, only: Collection[int] | None = None) -> None:
        """`only` these indices; None = all. Raises NVMLError for a GPU that cannot be opened."""
        self._gpus = [
            _Gpu(index) for index in range(pynvml.nvmlDeviceGetCount()) if only is None or index in only
        ]
        self._events = pynvml.nvmlEventSetCreate()
        for gpu in self._gpus:
            _ask(
                pynvml.nvmlDeviceRegisterEvents,
                gpu.handle,
                pynvml.nvmlEventTypeXidCriticalError,
                self._events,
            )

    @property
    def driver(self) -> str:
        """The driver's version."""
        return str(pynvml.nvmlSystemGetDriverVersion())

    def processes(self) -> dict[int, list[int]]:
        """By index, the processes that compute on a GPU."""
        return {
            gpu.index: pids
            for gpu in self._gpus
            if (
                pids := [
                    each.pid for each in _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle) or []
                ]
            )
        }

    def sample(self) -> None:
        """Note the clocks' limits and the speed of PCIe; call it every now and then while the GPUs work."""
        for gpu in self._gpus:
            gpu.sample()

    def read(self) -> tuple[GpuReading, ...]:
        """All GPUs now, with what was sampled, and the Xids since NVML was opened."""
        self._collect_xids()
        return tuple(self._read(gpu) for gpu in self._gpus)

    def _collect_xids(self) -> None:
        for _ in range(MAX_XIDS):
            event = _ask(pynvml.nvmlEventSetWait_v2, self._events, XID_WAIT_MS)
            if event is None:  # none within that time
                return
            uuid = _uuid(event.device)
            for gpu in self._gpus:
                if uuid in (gpu.uuid, ""):  # a GPU that is lost has no name any more
                    gpu.xids.append(int(event.eventData))

    def _read(self, gpu: _Gpu) -> GpuReading:
        try:
            reading = _state(gpu)
        except pynvml.NVMLError as error:
            reading = GpuReading(gpu.index, gpu.uuid, error=str(error))
        else:
            reading = msgspec.structs.replace(reading, unreachable=self._unreachable(gpu))
        return msgspec.structs.replace(reading, xids=tuple(gpu.xids))

    def _unreachable(self, gpu: _Gpu) -> tuple[int, ...]:
        """The GPUs whose memory this one cannot read directly."""
        return tuple(
            peer.index
            for peer in self._gpus
            if peer is not gpu
            and _ask(pynvml.nvmlDeviceGetP2PStatus, gpu.handle, peer.handle, _P2P_READ) in _P2P_BLOCKED
        )


@contextmanager
def opened(only: Collection[int] | None = None) -> Iterator[Nvml]:
    """NVML, for as long as the block runs. Raises NVMLError where there is no driver."""
    pynvml.nvmlInit()
    try:
        yield Nvml(only)
    finally:
        pynvml.nvmlShutdown()


def _state(gpu: _Gpu) -> GpuReading:
    """What one GPU reports. Raises NVMLError for one that does not answer."""
    handle = gpu.handle
    rows = _ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    mig = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    gpu.sample()
    reading = GpuReading(
        index=gpu.index,
        uuid=gpu.uuid,
        name=str(_ask(pynvml.nvmlDeviceGetName, handle) or ""),
        clock_limits=sum(bit for bit, seen in gpu.limits.items() if seen >= SAMPLES),
        ecc_uncorrected=_ask(
            pynvml.nvmlDeviceGetTotalEccErrors,
            handle,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
        rows_pending=None if rows is None else bool(rows[2]),
        rows_failed=None if rows is None else bool(rows[3]),
        pcie_generation=gpu.generation or None,
        pcie_generation_max=_ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_width=_ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        pcie_width_max=_ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        pcie_replays=_ask(pynvml.nvmlDeviceGetPcieReplayCounter, handle),
        fabric=_fabric(handle),
        virtualization=_ask(pynvml.nvmlDeviceGetVirtualizationMode, handle),
        mig=None if mig is None else mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
    )
    return _with_links(reading, handle)


def _with_links(reading: GpuReading, handle: Any) -> GpuReading:
    states = {
        link: state
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
        if (state := _ask(pynvml.nvmlDeviceGetNvLinkState, handle, link)) is not None
    }
    if not states:
        return reading
    errors = sum(
        _ask(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind) or 0
        for link in states
        for kind in _LINK_ERRORS
    )
    up = sum(1 for state in states.values() if state == pynvml.NVML_FEATURE_ENABLED)
    return msgspec.structs.replace(reading, links_up=up, links_down=len(states) - up, link_errors=errors)


def _fabric(handle: Any) -> FabricState | None:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if _ask(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, byref(info)) is None:
        return None
    match info.state:
        case pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
            return None
        case pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
            return "ready" if info.status == pynvml.NVML_SUCCESS else "failed"
        case _:
            return "registering"


def _uuid(handle: Any) -> str:
    """The name of an event's GPU; empty for one that does not answer any more."""
    try:
        return str(pynvml.nvmlDeviceGetUUID(handle))
    except pynvml.NVMLError:
        return ""


def _ask(call: Callable[..., Any], *arguments: Any) -> Any:
    """The call's result, or None where the figure cannot be had. Raises NVMLError for a fault."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _WITHHELD:
            return None
        raise
