"""One run: a machine, its load, the faults of a seed, and audits of the books."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from bench.chaos.books import Audit, Books, Violation
from bench.chaos.inject import Injector
from bench.chaos.journal import Journal
from bench.chaos.machine import Machine
from bench.chaos.plan import Fault, plan
from bench.chaos.traffic import TENANTS, Customer, Traffic

QUIET_TIMEOUT_S = 100.0
"""Seconds that open requests get to end before an audit."""
SETTLE_TIMEOUT_S = 90.0
"""Seconds in which everything must be settled and compared once the load has ended and nothing is hurt."""
TOP_UP_USD = "0.004"
_LAG_S = 0.1


@dataclass(frozen=True)
class Done:
    """A fault that was done."""

    fault: Fault
    at_s: float
    """Seconds since the load began."""
    took_s: float
    said: str


@dataclass
class Outcome:
    """The result of a run."""

    seed: int
    faults: list[Done] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    timeline: list[tuple[float, str]] = field(default_factory=list)
    """When each request ended, in seconds since the load began, and how."""
    took_s: float = 0.0
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Whether no audit found anything."""
        return bool(self.audits) and not any(audit.violations for audit in self.audits)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        faults = [
            {
                **asdict(done.fault),
                "at_s": round(done.at_s, 2),
                "took_s": round(done.took_s, 2),
                "said": done.said,
            }
            for done in self.faults
        ]
        return {
            "seed": self.seed, "sound": self.sound, "took_s": round(self.took_s, 1), "machine": self.machine,
            "faults": faults, "audits": [audit.as_dict() for audit in self.audits], "timeline": self.timeline,
        }  # fmt: skip


@dataclass
class Run:
    """Plays `faults` faults of `seed` in `folder`. `say` gets a line for each thing that happens."""

    seed: int
    faults: int
    folder: Path
    mounts: bool
    clients: int = 24
    audit_every: int = 50
    say: Callable[[str], None] = print
    step: Callable[[str], None] = print
    """Gets the name of what goes on, for a display."""

    def __post_init__(self) -> None:
        self.machine = Machine(self.folder, mounts=self.mounts)
        self.journal = Journal()
        self.outcome = Outcome(self.seed)
        self._began = 0.0
        self._customers: list[Customer] = []

    async def play(self) -> Outcome:
        """Start, load, hurt, audit; returns the outcome. The machine ends with it."""
        started = time.monotonic()
        lag = asyncio.create_task(self._watch_lag())
        traffic: Traffic | None = None
        try:
            self.step("starting PostgreSQL, Redis and the platform")
            await self.machine.start()
            await self._comes_true(self.machine.healthy)
            books = Books(self.machine.postgres.url, self.folder / "engines.jsonl", self.journal)
            self._customers = [await self._customer(name, credit) for name, credit in TENANTS.items()]
            urls = lambda: (self.machine.base_url, self.machine.proxied_url)  # noqa: E731
            traffic = Traffic(
                random.Random(self.seed),
                self.machine.ready["model"],
                self._customers,
                urls,
                self.journal,
                self.clients,
            )
            self._began = time.monotonic()
            traffic.start()
            await self._hurt(traffic, books)
        finally:
            lag.cancel()
            if traffic is not None:
                await traffic.close()
            self.step("ending")
            await self.machine.close()
            self.outcome.took_s = time.monotonic() - started
        return self.outcome

    async def _customer(self, name: str, credit: str) -> Customer:
        admin = self.machine.admin
        tenant = await admin("POST", "/tenants", {"name": name})
        await admin("POST", f"/tenants/{tenant['id']}/credits", {"amount_usd": credit, "reason": "chaos"})
        project = (await admin("GET", f"/tenants/{tenant['id']}/projects"))["data"][0]["id"]
        key = await admin("POST", f"/tenants/{tenant['id']}/keys", {"project_id": project, "name": "chaos"})
        return Customer(name, tenant["id"], key["secret"])

    # -- faults ----------------------------------------------------------------------------------------------------

    async def _hurt(self, traffic: Traffic, books: Books) -> None:
        injector = Injector(self.machine, self.journal)
        going: set[asyncio.Task[None]] = set()
        for fault in plan(self.seed, self.faults):
            await asyncio.sleep(fault.after_s)
            self.step(str(fault))
            if fault.kind in ("restart", "crash-postgres") and going:
                await asyncio.gather(*going)  # what lasts would be undone by it, or prevent its start
            task = asyncio.create_task(self._one(injector, fault))
            going.add(task)
            if fault.kind == "restart":
                await task
            last = fault.number == self.faults
            if last or fault.number % self.audit_every == 0:
                await asyncio.gather(*going)
                going.clear()
                await self._ask(traffic, books)
                if not last:
                    traffic.resume()
        await asyncio.gather(*going)

    async def _one(self, injector: Injector, fault: Fault) -> None:
        began = time.monotonic()
        try:
            said = await injector.do(fault)
        except Exception as error:  # noqa: BLE001 - a fault that fails is reported; the others go on
            said = f"FAILED: {type(error).__name__}: {error}"
        ended = time.monotonic()
        self.outcome.faults.append(Done(fault, began - self._began, ended - began, said))
        self.say(f"{began - self._began:7.1f} s  {fault}: {said}")

    # -- audits ----------------------------------------------------------------------------------------------------

    async def _ask(self, traffic: Traffic, books: Books) -> None:
        """Let everything end, then ask the books."""
        self.step("waiting until all requests have ended")
        traffic.pause()
        await traffic.quiet(QUIET_TIMEOUT_S)
        late = []
        for holds, what in (
            (self.machine.healthy, "every role serves"),
            (lambda: self._settled(books), "everything is settled"),
            (lambda: self._compared(books), "every token is compared"),
        ):
            self.step(f"waiting until {what}")
            if not await self._comes_true(holds):
                late.append(
                    Violation("the platform recovers", f"not within {SETTLE_TIMEOUT_S:.0f} s: {what}")
                )
        audit = await books.audit()
        audit.violations[:0] = late
        self.outcome.audits.append(audit)
        self.outcome.timeline += [
            (round(entry.ended_at - self._began, 2), entry.result) for entry in self.journal.entries
        ]
        self.say(
            f"books: {audit.rows} rows of {sum(audit.requests.values())} requests {audit.requests}, "
            f"{audit.compared} compared with engines; output tokens: delivered {audit.delivered}, lost {audit.lost}, "
            f"billed {audit.billed}, forgiven {audit.forgiven}, generated {audit.generated}; "
            f"{len(audit.violations)} violations"
        )
        for violation in audit.violations[:40]:
            self.say(f"VIOLATION {violation.check}: {violation.detail} {violation.request_id}")
        self.journal.entries.clear()
        dry = self._customers[-1]
        credit = {"amount_usd": TOP_UP_USD, "reason": "chaos"}
        with contextlib.suppress(httpx.HTTPError):  # it stays dry where the platform did not recover
            await self.machine.admin("POST", f"/tenants/{dry.tenant_id}/credits", credit)

    async def _settled(self, books: Books) -> bool:
        """No hold is open, and no spool of a dead process is left."""
        alive = len(self.machine.pids("api"))
        return await books.open_holds() == 0 and len(list(self.machine.spool.glob("*.spool"))) <= alive

    async def _compared(self, books: Books) -> bool:
        """Reconciliation has seen and compared all that living engines count, and all of the dead."""
        try:
            await self.machine.admin("POST", "/reconcile/run")
            counted = await self._counted()
        except httpx.HTTPError:
            return False
        engines = await books.engines()
        stored = sum(
            each["prompt_tokens"] + each["generation_tokens"] for each in engines if not each["ended_at"]
        )
        return stored >= counted and not any(
            each["uncompared"] or books.unexplained(each) for each in engines
        )

    async def _counted(self) -> int:
        total = 0.0
        async with httpx.AsyncClient(timeout=10) as client:
            for url in self.machine.engine_metrics():
                for line in (await client.get(url)).text.splitlines():
                    if line.startswith(("vllm:prompt_tokens_total", "vllm:generation_tokens_total")):
                        total += float(line.rsplit(" ", 1)[1])
        return int(total)

    async def _comes_true(self, holds: Callable[[], Any]) -> bool:
        """Wait for a condition; False when it does not come."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, asyncpg.PostgresError):
                if await holds():
                    return True
            await asyncio.sleep(0.3)
        return False

    async def _watch_lag(self) -> None:
        """Note when this process was run late: the machine was busy, and the platform was late, too."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(_LAG_S)
            if (late := time.monotonic() - before - _LAG_S) > 2 * _LAG_S:
                self.journal.lag.add(before, before + late)
