"""Reads the state of NVIDIA GPUs through the driver's library, with NVIDIA's own binding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref
from typing import Any

import msgspec
import pynvml

from workers.acceptance.readings import FabricState, GpuReading

MAX_XIDS = 64
"""Errors of the driver that are kept of one check."""
XID_WAIT_MS = 10

_P2P_READ = 0
"""nvmlGpuP2PCapsIndex_t of reads; NVML_P2P_CAPS_INDEX_READ of the binding is a tuple by mistake (13.615)."""
_LINK_ERRORS = (
    pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
)


class Nvml:
    """An open NVML. Every figure that a board or driver does not support is None."""

    def __init__(self) -> None:
        self._handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        self._events = pynvml.nvmlEventSetCreate()
        for handle in self._handles:
            _ask(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
        self._xids: dict[str, list[int]] = {}

    @property
    def driver(self) -> str:
        """The driver's version."""
        return str(pynvml.nvmlSystemGetDriverVersion())

    def read(self) -> tuple[GpuReading, ...]:
        """All GPUs now, each with the Xids since NVML was opened."""
        self._collect_xids()
        return tuple(self._gpu(index, handle) for index, handle in enumerate(self._handles))

    def _collect_xids(self) -> None:
        while sum(map(len, self._xids.values())) < MAX_XIDS:
            event = _ask(pynvml.nvmlEventSetWait_v2, self._events, XID_WAIT_MS)
            if event is None:  # none within that time
                return
            uuid = str(_ask(pynvml.nvmlDeviceGetUUID, event.device))
            self._xids.setdefault(uuid, []).append(int(event.eventData))

    def _gpu(self, index: int, handle: Any) -> GpuReading:
        rows = _ask(pynvml.nvmlDeviceGetRemappedRows, handle)
        uuid = str(_ask(pynvml.nvmlDeviceGetUUID, handle) or "")
        mig = _ask(pynvml.nvmlDeviceGetMigMode, handle)
        reading = GpuReading(
            index=index,
            uuid=uuid,
            name=str(_ask(pynvml.nvmlDeviceGetName, handle) or ""),
            clock_limits=_ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
            ecc_uncorrected=_ask(
                pynvml.nvmlDeviceGetTotalEccErrors,
                handle,
                pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                pynvml.NVML_VOLATILE_ECC,
            ),
            rows_pending=None if rows is None else bool(rows[2]),
            rows_failed=None if rows is None else bool(rows[3]),
            pcie_generation=_ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            pcie_generation_max=_ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            pcie_width=_ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            pcie_width_max=_ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
            pcie_replays=_ask(pynvml.nvmlDeviceGetPcieReplayCounter, handle),
            unreachable=self._unreachable(index),
            fabric=_fabric(handle),
            virtualization=_ask(pynvml.nvmlDeviceGetVirtualizationMode, handle),
            mig=None if mig is None else mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
            xids=tuple(self._xids.get(uuid, ())),
        )
        return _with_links(reading, handle)

    def _unreachable(self, index: int) -> tuple[int, ...]:
        """The GPUs that this one cannot read directly. What is not supported is not counted."""
        return tuple(
            other
            for other, peer in enumerate(self._handles)
            if other != index
            and _ask(pynvml.nvmlDeviceGetP2PStatus, self._handles[index], peer, _P2P_READ)
            not in (None, pynvml.NVML_P2P_STATUS_OK)
        )


@contextmanager
def opened() -> Iterator[Nvml]:
    """NVML, for as long as the block runs. Raises NVMLError where there is no driver."""
    pynvml.nvmlInit()
    try:
        yield Nvml()
    finally:
        pynvml.nvmlShutdown()


def _with_links(reading: GpuReading, handle: Any) -> GpuReading:
    states = [
        state
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
        if (state := _ask(pynvml.nvmlDeviceGetNvLinkState, handle, link)) is not None
    ]
    if not states:
        return reading
    errors = sum(
        _ask(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind) or 0
        for link in range(len(states))
        for kind in _LINK_ERRORS
    )
    up = sum(1 for state in states if state == pynvml.NVML_FEATURE_ENABLED)
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


def _ask(call: Callable[..., Any], *arguments: Any) -> Any:
    """The call's result, or None where the board, the driver or the library does not have it."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None
