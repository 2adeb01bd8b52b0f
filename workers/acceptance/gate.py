"""Keeps engines off a host that is not fit, and tells the scheduler what was found."""

import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Callable

import msgspec

from core.clock import Clock
from core.errors import PenstockError
from core.process_identity import boot_id
from core.settings import Settings
from workers.acceptance import record
from workers.acceptance.check import Acceptance
from workers.acceptance.commands import run_tool
from workers.acceptance.readings import HostReading, SpeedReading
from workers.acceptance.rules import SPEED_REFUSED, Finding, Verdict
from workers.acceptance.speed import measured_capacity, probe
from workers.catalog import Catalog
from workers.engine_api import EngineApi
from workers.machine import Gpus, find_gpus
from workers.plan import HostPlan, ReplicaPlan
from workers.replica_view import EngineRefused
from workers.wire import AcceptanceFinding, AcceptanceReport, Capacity

log = logging.getLogger(__name__)

CHECK_S = 1200.0
"""Seconds after which a check that has not ended refuses the host: longer than all of its tools may take."""
AGAIN_S = 300.0
"""Seconds until a refused host is checked again: some faults pass, or are mended."""
MAX_FINDINGS, MAX_TEXT = 32, 300
"""Findings that a heartbeat carries, the worst first, and the characters of each."""
_ORDER = ("refused", "degraded", "note")


class HostGate:
    """The acceptance of this host; one that has no GPUs, or whose engines are not its own, needs none."""

    def __init__(self, settings: Settings, catalog: Catalog, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        stated = catalog.hosts.get(settings.host_kind)
        self._has_gpus = settings.engine in ("auto", "vllm") and stated is not None and stated.gpus > 0
        """Whether the settings say that this is a host with GPUs, which serves with them or not at all."""
        self._acceptance: Acceptance | None = None
        self._one_probe = asyncio.Lock()

    async def planned(self, make: Callable[[], Awaitable[HostPlan]]) -> HostPlan:
        """The plan that `make` gives. Where the settings state a kind with GPUs, a host for which it raises a
        PenstockError is refused, and it is tried again every AGAIN_S seconds; elsewhere the error is raised.
        """
        while True:
            try:
                return await make()
            except PenstockError as error:
                if not self._has_gpus:
                    raise
                self._acceptance = await self._unplanned(error.message)
                log.error("%s; this host serves nothing, tried again in %.0f s", error.message, AGAIN_S)
            await asyncio.sleep(AGAIN_S)

    async def _unplanned(self, why: str) -> Acceptance:
        """A refusal of a host that cannot be planned, with the state of the GPUs that it has."""
        finding = Finding("refused", "plan", why)
        gpus = await find_gpus()
        if not gpus.ids:
            return self._result("refused", finding)
        found = await self._check(self._settings.host_kind, gpus, busy=True)
        worse = (each for each in found.findings if each.severity != "note")
        return msgspec.structs.replace(found, verdict="refused", findings=(finding, *worse))

    async def admit(self, plan: HostPlan, *, busy: bool) -> None:
        """Return when the host may start engines; a refused one is checked again every AGAIN_S seconds.

        A check of this boot of the machine that has measured the host is not repeated. `busy`: engines of an earlier
        agent run. They go on running whatever is found, and nothing is measured beside them.
        """
        if not any(replica.engine == "vllm" and replica.gpu_ids for replica in plan.replicas):
            return
        if self._settings.acceptance == "off":
            self._acceptance = self._result(
                "accepted", Finding("note", "check", "PENSTOCK_ACCEPTANCE is off")
            )
            return
        found = await asyncio.to_thread(record.load, self._settings.data_dir, boot_id())
        if (
            found is not None and self._acceptance is not None
        ):  # it could not be planned: a stored result is too old
            found = msgspec.structs.replace(found, verdict="refused")
        while found is None or found.verdict == "refused" or not (found.reading.loaded or busy):
            speeds = found.speeds if found is not None else ()
            kind = self._settings.host_kind or plan.host_kind
            found = await self._check(kind, await find_gpus(), busy=busy)
            found = msgspec.structs.replace(found, speeds=speeds)
            if busy and found.verdict == "refused":  # it serves, so it is not
                found = msgspec.structs.replace(found, verdict="degraded")
            await self._keep(found)
            for finding in found.findings:
                if finding.severity != "note":
                    log.warning("this host is %s: %s", finding.severity, finding.text)
            if found.verdict != "refused":
                return
            log.error("this host serves nothing; it is checked again in %.0f s", AGAIN_S)
            await asyncio.sleep(AGAIN_S)
        self._acceptance = found

    async def _check(self, kind: str, gpus: Gpus, *, busy: bool) -> Acceptance:
        settings = self._settings
        count = () if settings.host_kind else ("--count", str(len(gpus.ids)))
        log.info("checking this host as %s%s", kind, ", beside its engines" if busy else "")
        command = (
            *(sys.executable, "-m", "workers.acceptance", "--host-kind", kind, "--only", ",".join(gpus.ids)),
            *("--engine-env", str(settings.engine_env), *count, *(("--busy",) if busy else ())),
        )
        ran = await run_tool(command, CHECK_S)
        try:
            return msgspec.json.decode(ran.printed if ran is not None else "", type=Acceptance)
        except msgspec.MsgspecError:
            why = ran.last_line if ran is not None else "it cannot be started"
            return self._result(
                "refused", Finding("refused", "check", f"the host could not be checked: {why}")
            )

    def _result(self, verdict: Verdict, finding: Finding) -> Acceptance:
        """A result without a reading."""
        return Acceptance(verdict, self._clock.now(), boot_id(), (finding,), HostReading(error=finding.text))

    async def probe(self, plan: ReplicaPlan, api: EngineApi) -> Capacity:
        """The capacity of a fresh engine. Raises EngineRefused for one that is too slow to serve."""
        if self._acceptance is None or self._settings.acceptance == "off" or plan.embeds:
            return plan.capacity
        async with self._one_probe:
            speed = await probe(api, plan.model_name, plan.replica_id, plan.capacity, self._clock)
            if speed is None:
                log.warning("the speed of %s was not measured: it did not answer in time", plan.replica_id)
                return plan.capacity
            await self._keep(self._acceptance.with_speed(speed))
        if speed.validated and speed.slowest < SPEED_REFUSED:
            raise EngineRefused(
                f"the engine reaches {speed.slowest:.0%} of the speed that its profile states; less than "
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
        try:
            await asyncio.to_thread(record.save, self._settings.data_dir, found)
        except OSError as error:  # the next agent checks the host again
            log.warning("the result of the checks cannot be stored: %s", error)


def report_of(found: Acceptance) -> AcceptanceReport:
    """What a heartbeat says of an acceptance."""
    worst = sorted(found.findings, key=lambda finding: _ORDER.index(finding.severity))[:MAX_FINDINGS]
    return AcceptanceReport(
        verdict=found.verdict,
        at_unix_ms=int(found.at.timestamp() * 1000),
        findings=[AcceptanceFinding(each.severity, each.check, _clean(each.text)) for each in worst],
        figures=figures_of(found),
    )


def _clean(text: str) -> str:
    """At most MAX_TEXT printable characters: tools and drivers print what they like."""
    return "".join(char if char.isprintable() else " " for char in text[:MAX_TEXT])


def figures_of(found: Acceptance) -> dict[str, float]:
    """The measured figures, of GPUs the worst one's."""
    figures: dict[str, float] = {"gpus": len(found.reading.gpus)}
    reduced = found.reading.all_reduce
    if reduced is not None and not reduced.error:
        figures |= {"all_reduce_gb_per_s": reduced.bus_gb_per_s, "all_reduce_small_us": reduced.small_us}
    devices = found.reading.bandwidth.devices if found.reading.bandwidth is not None else ()
    if devices:
        figures |= {
            "memory_gb_per_s": round(min(each.memory_gb_per_s for each in devices), 1),
            "to_device_gb_per_s": round(min(each.to_device_gb_per_s for each in devices), 1),
            "from_device_gb_per_s": round(min(each.from_device_gb_per_s for each in devices), 1),
            "launch_us": round(max(each.launch_us for each in devices), 1),
        }
    figures |= _shares(found.speeds)
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _shares(speeds: tuple[SpeedReading, ...]) -> dict[str, float]:
    if not speeds:
        return {}
    return {
        "prefill_share": min(each.prefill_share for each in speeds),
        "decode_share": min(each.decode_share for each in speeds),
    }
