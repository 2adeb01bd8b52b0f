"""Plays connections until enough clients have left, lets everything be settled, and asks the books."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from bench.cancels.answers import Ids
from bench.cancels.asks import Ask, Script, draw
from bench.cancels.client import play
from bench.chaos.books import Audit, Books, Violation
from bench.chaos.generated import Generated, read_engine_log
from bench.chaos.journal import Entry, Journal
from bench.chaos.traffic import Customer

SETTLE_TIMEOUT_S = 90.0
"""Seconds in which everything must be settled, and then compared, once all clients have left."""
_POLL_S = 0.1
_LABELS = """
    SELECT l.request_id::text AS request_id, l.tenant_id::text AS tenant_id, v.value
    FROM usage_labels l JOIN label_values v ON v.id = l.user_value
"""


@dataclass(frozen=True)
class Platform:
    """What is played against."""

    url: str
    """Address of the customer API, without /v1."""
    model: str
    """A model that simulated engines serve."""
    customers: Sequence[Customer]
    database_url: str
    engine_log: Path
    """Where the simulated engines write what they generated (sim/engine/request_log.py)."""
    reconcile: Callable[[], None] | None = None
    """Compares the engines' counters with the books; None = the platform scrapes no engine."""


@dataclass
class Outcome:
    """The result of a run."""

    seed: int
    left: dict[str, dict[str, int]] = field(default_factory=dict)
    """Clients that left, by kind of request and by how far the answer had come."""
    read: int = 0
    """Requests whose clients read the whole answer."""
    connections: int = 0
    reused: int = 0
    """Requests that followed another one on its connection."""
    requests: dict[str, int] = field(default_factory=dict)
    """Requests by their end at the client."""
    refusals: dict[str, int] = field(default_factory=dict)
    """Answers that are errors, by status and code."""
    audit: Audit = field(default_factory=Audit)
    took_s: float = 0.0
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def cancels(self) -> int:
        """How many clients left."""
        return sum(sum(each.values()) for each in self.left.values())

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.audit.violations

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "cancels": self.cancels, "sound": self.sound}


class Run:
    """Plays the connections of a seed until `cancels` clients have left, `connections` at the same time."""

    def __init__(
        self, platform: Platform, seed: int, cancels: int, connections: int, say: Callable[[int], None]
    ) -> None:
        """`say` gets how many clients have left so far."""
        self._platform = platform
        self._cancels = cancels
        self._connections = connections
        self._say = say
        self._journal = Journal()
        self._asked: dict[str, Entry] = {}
        """By the end user that the request names."""
        self._ids = Ids()
        self._strange: list[Violation] = []
        self.outcome = Outcome(seed)

    async def play(self) -> Outcome:
        """Play, wait, ask; returns the outcome."""
        began = time.monotonic()
        await asyncio.gather(*(self._one_after_another() for _ in range(self._connections)))
        books = Books(self._platform.database_url, self._platform.engine_log, self._journal)
        late = []
        for holds, what in (
            (self._is_settled, "is settled"), (lambda: self._is_compared(books), "is compared with the engines"),
        ):  # fmt: skip
            if not await _comes_true(holds):
                late.append(Violation(f"everything {what}", f"not within {SETTLE_TIMEOUT_S:.0f} s"))
        audit = await books.audit()
        audit.violations += [*late, *self._strange, *await self._rows_are_theirs()]
        self.outcome.audit = audit
        self.outcome.requests = self._journal.by_result()
        self.outcome.read = sum(
            entry.finished and entry.status == 200 and not entry.left for entry in self._journal.entries
        )
        refused = Counter(
            f"{entry.status or ''} {entry.code}".strip() for entry in self._journal.entries if entry.code
        )
        self.outcome.refusals = dict(sorted(refused.items()))
        self.outcome.took_s = round(time.monotonic() - began, 1)
        return self.outcome

    async def _one_after_another(self) -> None:
        parts = urlsplit(self._platform.url)
        while self.outcome.cancels < self._cancels:
            number = self.outcome.connections
            self.outcome.connections += 1
            script = draw(self.outcome.seed, number, self._platform.model, len(self._platform.customers))
            entries: list[Entry] = []
            customer = self._platform.customers[script.customer]
            strange = ""
            with contextlib.suppress(
                OSError, TimeoutError
            ):  # what no answer came to has `broken` or no status
                strange = await play(
                    str(parts.hostname), int(parts.port or 80), script, customer.key,
                    lambda ask, of=customer, to=entries: self._entry(ask, of, to), self._ids,
                )  # fmt: skip
            if strange:
                self._strange.append(Violation("answers do not cross", strange, entries[-1].request_id))
            self._count(script, entries)

    def _entry(self, ask: Ask, customer: Customer, of_script: list[Entry]) -> Entry:
        entry = Entry(
            ask.number, customer.tenant_id, ask.kind, ask.prompt_tokens, ask.tokens, time.monotonic()
        )
        self.outcome.reused += bool(of_script)
        of_script.append(entry)
        self._journal.entries.append(entry)
        self._asked[ask.label] = entry
        return entry

    def _count(self, script: Script, entries: list[Entry]) -> None:
        """Count the request that the client left; what it sent behind it is no further cancel."""
        for entry in entries:
            at_its_end = script.way == "end" and entry.number == script.asks[script.leaves_in].number
            if entry.left or at_its_end:
                by_stage = self.outcome.left.setdefault(entry.kind, {})
                stage = _stage(entry)
                by_stage[stage] = by_stage.get(stage, 0) + 1
                self._say(self.outcome.cancels)
                return

    # -- the books -------------------------------------------------------------------------------------------------

    async def _is_settled(self) -> bool:
        """Whether the engines are idle, no hold is open, and each request that reached an engine has its row."""
        logged = self._logged()
        if not all(each.is_known for each in logged.values()):
            return False
        holds = await self._rows("SELECT 1 FROM holds WHERE state = 'open' LIMIT 1")
        return not holds and logged.keys() <= await self._billed()

    async def _is_compared(self, books: Books) -> bool:
        """Whether reconciliation has seen and compared all that the engines generated."""
        if self._platform.reconcile is None:
            return True
        await asyncio.to_thread(self._platform.reconcile)
        engines = await books.engines()
        generated = sum(each.most for each in read_engine_log(self._platform.engine_log).values())
        seen = sum(int(each["generation_tokens"]) for each in engines)
        return seen >= generated and not any(each["uncompared"] for each in engines)

    def _logged(self) -> dict[str, Generated]:
        """What the engines generated by request, without what an agent asked them to warm them up, which has no id."""
        logged = read_engine_log(self._platform.engine_log)
        return {request_id: each for request_id, each in logged.items() if request_id}

    async def _billed(self) -> set[str]:
        return {row["id"] for row in await self._rows("SELECT request_id::text AS id FROM usage")}

    async def _rows_are_theirs(self) -> list[Violation]:
        """Return what is wrong with the rows by the end user that each request names, also where no answer came."""
        found: list[Violation] = []
        labelled: dict[str, str] = {}
        for row in await self._rows(_LABELS):
            entry = self._asked.get(row["value"])
            if entry is None or row["tenant_id"] != entry.tenant:
                found.append(Violation("a row names its request", row["value"], row["request_id"]))
                continue
            if row["value"] in labelled:
                found.append(Violation("one row per request", f"{row['value']} has two", row["request_id"]))
            if entry.request_id not in ("", row["request_id"]):
                detail = f"{row['value']}: its answer said {entry.request_id}"
                found.append(Violation("a row is that of its answer", detail, row["request_id"]))
            labelled[row["value"]] = row["request_id"]
        billed = await self._billed()
        for request_id in billed - set(labelled.values()):
            found.append(Violation("a row names its request", "it names none", request_id))
        for request_id in self._logged().keys() - billed:
            found.append(Violation("one row per request", "it reached an engine and has none", request_id))
        return found

    async def _rows(self, sql: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self._platform.database_url, timeout=20)
        try:
            return list(await connection.fetch(sql))
        finally:
            await connection.close()


async def _comes_true(holds: Callable[[], Awaitable[bool]]) -> bool:
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        if await holds():
            return True
        await asyncio.sleep(_POLL_S)
    return False


def _stage(entry: Entry) -> str:
    if not entry.status:
        return "before the head"
    if entry.finished:
        return "at the end"
    return "in the middle" if entry.tokens else "before the first token"
