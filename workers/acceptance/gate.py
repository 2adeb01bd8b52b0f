"""Keeps engines off a host that has not been accepted, and tells the scheduler what was found."""

import asyncio
import logging

from core.clock import Clock
from core.errors import EngineFailed, InvalidRequest
from core.process_identity import boot_id
from core.settings import Settings
from workers.acceptance import record
from workers.acceptance.check import Acceptance, check_host, expected_of
from workers.acceptance.readings import SpeedReading
from workers.acceptance.rules import SPEED_REFUSED
from workers.acceptance.speed import measured_capacity, probe
from workers.catalog import Catalog
from workers.engine_api import EngineApi
from workers.plan import HostPlan, ReplicaPlan
from workers.wire import AcceptanceFinding, AcceptanceReport, Capacity

log = logging.getLogger(__name__)

MAX_FINDINGS = 32
"""Findings that a heartbeat carries, the worst first."""
_ORDER = ("refused", "degraded", "note")


class HostGate:
    """The acceptance of this host; one that has no GPUs, or whose engines are not its own, needs none."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Raises InvalidRequest for an unknown setting."""
        if settings.acceptance not in ("auto", "off"):
            raise InvalidRequest(
                f"acceptance is {settings.acceptance!r}; it must be auto or off", param="acceptance"
            )
        self._settings, self._clock = settings, clock
        self._acceptance: Acceptance | None = None

    async def admits(self, plan: HostPlan, catalog: Catalog, *, busy: bool) -> bool:
        """Whether the host may start engines. Checks it once in each boot of the machine, and after a refusal anew.

        `busy`: engines of an earlier agent run, so that nothing may be measured.
        """
        settings = self._settings
        own = any(replica.engine == "vllm" and replica.gpu_ids for replica in plan.replicas)
        if settings.acceptance == "off" or not own:
            return True
        found = await asyncio.to_thread(record.load, settings.data_dir, boot_id())
        if found is None or found.verdict == "refused":
            found = await check_host(
                expected_of(catalog, plan.host_kind),
                engine_env=settings.engine_env,
                machine_boot=boot_id(),
                clock=self._clock,
                load=not busy,
                tell=lambda step: log.info("checking this host: %s", step),
            )
        await self._keep(found)
        for finding in found.findings:
            if finding.severity != "note":
                log.warning("this host is %s: %s", finding.severity, finding.text)
        return found.verdict != "refused"

    async def probe(self, plan: ReplicaPlan, api: EngineApi) -> Capacity:
        """The capacity of a fresh engine. Raises EngineFailed for one that is too slow to serve."""
        if self._acceptance is None:
            return plan.capacity
        speed = await probe(api, plan.model_name, plan.replica_id, plan.capacity, self._clock)
        if speed is None:
            return plan.capacity
        await self._keep(self._acceptance.with_speed(speed))
        slowest = min(speed.prefill_share, speed.decode_share)
        if speed.validated and slowest < SPEED_REFUSED:
            raise EngineFailed(
                f"the engine reaches {slowest:.0%} of the speed that its profile states; less than "
                f"{SPEED_REFUSED:.0%} is refused"
            )
        return measured_capacity(plan.capacity, speed)

    def capacity(self, plan: ReplicaPlan) -> Capacity:
        """The capacity of a replica by what was measured of it in this boot of the machine."""
        speeds = self._acceptance.speeds if self._acceptance is not None else ()
        for speed in speeds:
            if speed.replica_id == plan.replica_id:
                return measured_capacity(plan.capacity, speed)
        return plan.capacity

    def report(self) -> AcceptanceReport | None:
        """What heartbeats say of it; None where there is no acceptance."""
        found = self._acceptance
        return None if found is None else report_of(found)

    async def _keep(self, found: Acceptance) -> None:
        self._acceptance = found
        await asyncio.to_thread(record.save, self._settings.data_dir, found)


def report_of(found: Acceptance) -> AcceptanceReport:
    """What a heartbeat says of an acceptance."""
    worst = sorted(found.findings, key=lambda finding: _ORDER.index(finding.severity))[:MAX_FINDINGS]
    return AcceptanceReport(
        verdict=found.verdict,
        at_unix_ms=int(found.at.timestamp() * 1000),
        findings=[AcceptanceFinding(each.severity, each.check, each.text) for each in worst],
        figures=figures_of(found),
    )


def figures_of(found: Acceptance) -> dict[str, float]:
    """The measured figures, of GPUs the worst one's."""
    figures: dict[str, float] = {"gpus": len(found.reading.gpus)}
    reduced = found.reading.all_reduce
    if reduced is not None and not reduced.error:
        figures |= {"all_reduce_gb_per_s": reduced.bus_gb_per_s, "all_reduce_small_us": reduced.small_us}
    devices = found.reading.bandwidth
    if devices:
        figures |= {
            "memory_gb_per_s": round(min(each.memory_gb_per_s for each in devices), 1),
            "to_device_gb_per_s": round(min(each.to_device_gb_per_s for each in devices), 1),
            "from_device_gb_per_s": round(min(each.from_device_gb_per_s for each in devices), 1),
            "launch_us": round(max(each.launch_us for each in devices), 1),
        }
    return figures | _shares(found.speeds)


def _shares(speeds: tuple[SpeedReading, ...]) -> dict[str, float]:
    if not speeds:
        return {}
    return {
        "prefill_share": min(each.prefill_share for each in speeds),
        "decode_share": min(each.decode_share for each in speeds),
    }
