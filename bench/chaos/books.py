"""Compares three accounts of the same requests: the journal of the clients, the rows of the books, the engines' log."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from bench.chaos.generated import Generated, read_engine_log
from bench.chaos.journal import Entry, Journal
from bench.chaos.sums import EMPTY
from billing.ledger.verification import verify
from core.db import Database

SLACK_S = 2.0
"""Seconds of delivered tokens that a killed process may lose: a checkpoint is a second apart, and takes a while."""
LOOK_BACK_S = 15.0
"""Seconds before a death in which stops and lags of processes count for the age of the last checkpoint."""
Row = Mapping[str, Any]
"""A usage row by column."""
BILLED_NOTHING = {"engine_failed", "zero_output"}


@dataclass(frozen=True)
class Violation:
    """Something that must not be."""

    check: str
    detail: str
    request_id: str = ""


@dataclass
class Audit:
    """The answers of the books."""

    rows: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    """Requests by their result at the client."""
    outcomes: dict[str, int] = field(default_factory=dict)
    delivered: int = 0
    """Output tokens that clients received of the requests with a row."""
    billed: int = 0
    """Output tokens of the rows that are charged."""
    generated: int = 0
    """Output tokens that the engines' counters showed."""
    forgiven: int = 0
    """Output tokens of the rows that are not charged: those of failed engines and of empty answers."""
    lost: int = 0
    """Output tokens that clients received and the rows of killed processes lack."""
    compared: int = 0
    """Rows whose output was compared with what the engines' log says of their request."""
    longest_loss_s: float = 0.0
    """The oldest token, before a process was killed, that was delivered and not charged."""
    unobserved: int = 0
    """Tokens of dead engines that no scrape saw, as far as reconciliation knows."""
    most_unobserved: int = 0
    """The most of one engine, since the beginning."""
    strangers: int = 0
    """Rows of requests whose client got no answer, and so no id."""
    unanswered: int = 0
    """Requests whose client got no answer."""
    engines: int = 0
    violations: list[Violation] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


class Books:
    """The platform's books, read directly at PostgreSQL; remembers which rows it has seen."""

    def __init__(self, url: str, engine_log: Path, journal: Journal) -> None:
        self._url = url
        self._engine_log = engine_log
        self._journal = journal
        self._seen: set[str] = set()
        self._before: dict[str, int] = {}

    async def open_holds(self) -> int:
        """Return the number of holds that wait for their end."""
        return int(await self._value("SELECT count(*) FROM holds WHERE state = 'open'"))

    async def engines(self) -> list[asyncpg.Record]:
        """Return every engine incarnation with its counters and what reconciliation makes of them."""
        return await self._rows(
            """
            WITH c AS (SELECT boot_id, sum(engine) AS engine, sum(unobserved) AS unobserved,
                    coalesce(sum(unexplained) FILTER (WHERE counter = 'prompt'), 0) AS prompt,
                    coalesce(sum(unexplained) FILTER (WHERE counter = 'generation'), 0) AS generation
                FROM reconciliations GROUP BY boot_id)
            SELECT e.boot_id, e.ended_at, e.prompt_tokens, e.generation_tokens, coalesce(c.prompt, 0) AS prompt,
                coalesce(c.generation, 0) AS generation, coalesce(c.unobserved, 0) AS unobserved,
                e.prompt_tokens + e.generation_tokens - coalesce(c.engine, 0) AS uncompared
            FROM engine_counters e LEFT JOIN c USING (boot_id)
            """
        )

    def unexplained(self, engine: Row) -> dict[str, int]:
        """Return the tokens of an engine that neither the books nor this run explain, by counter; {} = none.

        A request whose admission was torn from a spool has no row, and its engine has counted tokens.
        """
        if not engine["prompt"] and not engine["generation"]:
            return {}
        logged = read_engine_log(self._engine_log)
        torn = {
            name: each for name, each in self._journal.torn_open.items() if each.boot_id == engine["boot_id"]
        }
        most = {
            "prompt": sum(each.max_input_tokens for each in torn.values()),
            "generation": sum(logged[name].at_most for name in torn if name in logged),
        }
        return {
            counter: int(engine[counter])
            for counter, limit in most.items()
            if not 0 <= engine[counter] <= limit
        }

    async def audit(self) -> Audit:
        """Compare everything since the last audit, and all sums since the beginning."""
        audit = Audit(requests=self._journal.by_result())
        rows: dict[str, Row] = {
            str(row["request_id"]): dict(row)
            for row in await self._rows("SELECT * FROM usage ORDER BY request_id")
            if str(row["request_id"]) not in self._seen
        }
        audit.rows = len(rows)
        found = audit.violations
        for entry in self._journal.entries:
            row = rows.get(entry.request_id) if entry.request_id else None
            found += row_is_there(entry, self._journal) if row is None else row_is_right(entry, row)
            if row is not None:
                found += self.delivered_is_billed(audit, entry, row)
        logged = read_engine_log(self._engine_log)
        for request_id, row in rows.items():
            found += billed_is_generated(audit, request_id, row, logged.get(request_id))
            audit.outcomes[row["outcome"]] = audit.outcomes.get(row["outcome"], 0) + 1
            if row["outcome"] in BILLED_NOTHING:
                audit.forgiven += row["output_tokens"]
            else:
                audit.billed += row["output_tokens"]
        found += self.unknown_rows(audit, rows)
        found += await self._sums()
        found += await self._engines_explained(audit)
        self._seen |= rows.keys()
        return audit

    def delivered_is_billed(self, audit: Audit, entry: Entry, row: Row) -> Iterable[Violation]:
        """Return what is wrong when the row has less than the client received. Only a killed process excuses it."""
        billed, request_id = int(row["output_tokens"]), entry.request_id
        audit.delivered += entry.tokens
        if billed >= entry.tokens:
            return
        excused = row["outcome"] == "interrupted" and (
            request_id in self._journal.torn or entry.tokens_before(self._must_be_counted(entry)) <= billed
        )
        if not excused:
            detail = f"{entry.kind}, {row['outcome']}: delivered {entry.tokens}, billed {billed}"
            yield Violation("delivered <= billed", detail, request_id)
            return
        audit.lost += entry.tokens - billed
        if request_id not in self._journal.torn:
            audit.longest_loss_s = max(audit.longest_loss_s, self._loss_s(entry, billed))

    def _must_be_counted(self, entry: Entry) -> float:
        """Return the instant up to which delivered tokens must have been in a checkpoint."""
        died = min(self._journal.death_before(entry.ended_at), entry.ended_at)
        since = died - LOOK_BACK_S
        idle_s = self._journal.stopped.overlap_s(since, died) + self._journal.lag.overlap_s(since, died)
        return died - SLACK_S - idle_s

    def _loss_s(self, entry: Entry, billed: int) -> float:
        died = min(self._journal.death_before(entry.ended_at), entry.ended_at)
        first = next((at for at, tokens in entry.arrivals if tokens > billed), died)
        return max(died - first, 0.0)

    def unknown_rows(self, audit: Audit, rows: dict[str, Row]) -> Iterable[Violation]:
        """Rows that no client knows must be of requests whose clients got no answer."""
        known = {entry.request_id for entry in self._journal.entries}
        unanswered: dict[str, int] = {}
        for entry in self._journal.entries:
            if not entry.request_id:
                unanswered[entry.tenant] = unanswered.get(entry.tenant, 0) + 1
        audit.unanswered = sum(unanswered.values())
        unknown: dict[str, int] = {}
        for request_id, row in rows.items():
            if request_id not in known:
                unknown[str(row["tenant_id"])] = unknown.get(str(row["tenant_id"]), 0) + 1
        audit.strangers = sum(unknown.values())
        for tenant, number in unknown.items():
            if number > (most := unanswered.get(tenant, 0)):
                detail = f"tenant {tenant}: {number} rows without a client, {most} unanswered requests"
                yield Violation("nothing invented", detail)

    # -- sums ------------------------------------------------------------------------------------------------------

    async def _sums(self) -> list[Violation]:
        found = [
            Violation(check, str(dict(row))) for check, sql in EMPTY.items() for row in await self._rows(sql)
        ]
        database = Database(self._url)
        try:
            async with database.snapshot() as connection:
                result = await verify(connection)
        finally:
            await database.close()
        return found + [Violation("the books verify", problem) for problem in result.problems]

    async def _engines_explained(self, audit: Audit) -> list[Violation]:
        found = []
        engines = await self.engines()
        audit.engines = len(engines)
        generated = 0
        for engine in engines:
            generated += int(engine["generation_tokens"])
            audit.unobserved += int(engine["unobserved"])
            audit.most_unobserved = max(audit.most_unobserved, int(engine["unobserved"]))
            for counter, tokens in self.unexplained(engine).items():
                detail = f"engine {engine['boot_id']}: {tokens} {counter} tokens unexplained"
                found.append(Violation("reconciliation explains every token", detail))
            if engine["uncompared"]:
                detail = f"engine {engine['boot_id']}: {engine['uncompared']} tokens not compared"
                found.append(Violation("reconciliation compares every token", detail))
        audit.generated = generated - self._before.get("generated", 0)
        audit.unobserved -= self._before.get("unobserved", 0)
        self._before = {
            "generated": generated,
            "unobserved": audit.unobserved + self._before.get("unobserved", 0),
        }
        return found

    async def _rows(self, sql: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self._url, timeout=20)
        try:
            return list(await connection.fetch(sql))
        finally:
            await connection.close()

    async def _value(self, sql: str) -> Any:
        return (await self._rows(sql))[0][0]


def row_is_there(entry: Entry, journal: Journal) -> Iterable[Violation]:
    """Return what is wrong with a request that has no row."""
    if entry.wrong:
        yield Violation("answers are whole", entry.wrong, entry.request_id)
    if entry.admitted and entry.request_id not in journal.torn_open:
        detail = f"{entry.kind}: {entry.tokens} tokens delivered, {entry.result}"
        yield Violation("one row per admitted request", detail, entry.request_id)


def billed_is_generated(
    audit: Audit, request_id: str, row: Row, generated: Generated | None
) -> Iterable[Violation]:
    """Return what is wrong when a row has more than an engine generated for its request. `generated`: by its log.

    Nothing can be said of an attempt in an engine that was killed.
    """
    billed = int(row["output_tokens"])
    if generated is None:
        if billed:
            yield Violation("billed <= generated", f"billed {billed}, no engine knows it", request_id)
    elif generated.is_known:
        audit.compared += 1
        if billed > generated.most:
            yield Violation("billed <= generated", f"billed {billed}, generated {generated.most}", request_id)


def row_is_right(entry: Entry, row: Row) -> Iterable[Violation]:
    """Return what is wrong with the row of a request by itself."""
    billed, outcome = (int(row["input_tokens"]), int(row["output_tokens"])), row["outcome"]
    if entry.wrong:
        yield Violation("answers are whole", entry.wrong, entry.request_id)
    if str(row["tenant_id"]) != entry.tenant:
        yield Violation("a row belongs to its tenant", str(row["tenant_id"]), entry.request_id)
    whole = entry.finished and outcome != "interrupted"  # a process may be killed after the last byte, too
    if whole and entry.claimed not in (None, billed):
        yield Violation(
            "a row is what its answer says", f"answer {entry.claimed}, row {billed}", entry.request_id
        )
    if whole and entry.tokens != billed[1]:
        detail = f"{entry.kind}, {outcome}: delivered {entry.tokens}, billed {billed[1]}"
        yield Violation("a whole answer is billed as delivered", detail, entry.request_id)
    needs_prompt = billed[1] > 0 or (entry.tokens > 0 and outcome != "interrupted")
    if billed[0] not in (0, entry.prompt_tokens) or (needs_prompt and not billed[0]):
        detail = f"{entry.kind}, {outcome}: prompt {entry.prompt_tokens}, billed {billed[0]}"
        yield Violation("the prompt is billed once", detail, entry.request_id)
    if billed[1] > entry.max_tokens:
        yield Violation(
            "billed <= asked for", f"asked {entry.max_tokens}, billed {billed[1]}", entry.request_id
        )
    if outcome in BILLED_NOTHING and row["cost"]:
        yield Violation("failures cost nothing", f"{outcome}: {row['cost']}", entry.request_id)
    if entry.status not in (0, 200) and row["cost"]:
        yield Violation(
            "a refusal costs nothing", f"{entry.status} {entry.code}, {outcome}", entry.request_id
        )
