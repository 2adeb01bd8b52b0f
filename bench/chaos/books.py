"""Compares the books, after faults, with what clients saw."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from bench.chaos.journal import Entry, Journal
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
    """Output tokens that were charged."""
    generated: int = 0
    """Output tokens that the engines' counters showed."""
    forgiven: int = 0
    """Output tokens delivered and not charged: of killed processes and failed engines."""
    longest_loss_s: float = 0.0
    """The oldest token, before a process was killed, that was delivered and not charged."""
    unobserved: int = 0
    """Tokens of dead engines that no scrape saw, as far as reconciliation knows."""
    most_unobserved: int = 0
    """The most of one engine, since the beginning."""
    strangers: int = 0
    """Rows of requests whose client got no answer, and so no id."""
    lost: int = 0
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

    async def audit(self) -> Audit:
        """Compare everything since the last audit, and all sums since the beginning."""
        audit = Audit(requests=self._journal.by_result())
        rows: dict[str, Row] = {
            str(row["request_id"]): dict(row)
            for row in await self._rows("SELECT * FROM usage ORDER BY request_id")
            if str(row["request_id"]) not in self._seen
        }
        audit.rows = len(rows)
        logged = self._logged()
        found = audit.violations
        for entry in self._journal.entries:
            row = rows.get(entry.request_id) if entry.request_id else None
            found += row_is_there(entry, self._journal) if row is None else row_is_right(entry, row)
            if row is not None:
                found += self.compare(audit, entry, row, logged.get(entry.request_id))
        found += self.unknown_rows(audit, rows)
        found += await self._sums()
        found += await self._engines_explained(audit)
        for row in rows.values():
            audit.outcomes[row["outcome"]] = audit.outcomes.get(row["outcome"], 0) + 1
            audit.billed += row["output_tokens"] if row["outcome"] not in BILLED_NOTHING else 0
        self._seen |= rows.keys()
        return audit

    def compare(
        self, audit: Audit, entry: Entry, row: Row, generated: tuple[int, bool] | None
    ) -> Iterable[Violation]:
        """Return what is wrong with delivered <= billed <= generated of one request."""
        billed, request_id = int(row["output_tokens"]), entry.request_id
        audit.delivered += entry.tokens
        if row["outcome"] in BILLED_NOTHING:
            audit.forgiven += entry.tokens
        if billed < entry.tokens:
            audit.forgiven += entry.tokens - billed
            excused = row["outcome"] == "interrupted" and (
                request_id in self._journal.torn
                or entry.tokens_before(self._must_be_counted(entry)) <= billed
            )
            if not excused:
                detail = f"{entry.kind}, {row['outcome']}: delivered {entry.tokens}, billed {billed}"
                yield Violation("delivered <= billed", detail, request_id)
            elif request_id not in self._journal.torn:
                audit.longest_loss_s = max(audit.longest_loss_s, self._loss_s(entry, billed))
        if generated is not None and generated[1] and billed > generated[0]:
            yield Violation("billed <= generated", f"billed {billed}, generated {generated[0]}", request_id)

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

    def _logged(self) -> dict[str, tuple[int, bool]]:
        """Return the tokens generated by request, and whether all its attempts ended in a living engine."""
        if not self._engine_log.exists():
            return {}
        found: dict[str, tuple[int, bool]] = {}
        begun: dict[str, int] = {}
        for line in self._engine_log.read_text().splitlines():
            try:
                each = json.loads(line)
            except ValueError:
                continue  # its engine was killed while it wrote
            name = each["request_id"]
            if "generated" not in each:
                begun[name] = begun.get(name, 0) + 1
                found.setdefault(name, (0, False))
            else:
                begun[name] = begun.get(name, 0) - 1
                found[name] = (found.get(name, (0, False))[0] + each["generated"], False)
        return {name: (tokens, not begun[name]) for name, (tokens, _) in found.items()}

    def unknown_rows(self, audit: Audit, rows: dict[str, Row]) -> Iterable[Violation]:
        """Rows that no client knows must be of requests whose clients got no answer."""
        known = {entry.request_id for entry in self._journal.entries}
        lost: dict[str, int] = {}
        for entry in self._journal.entries:
            if not entry.request_id:
                lost[entry.tenant] = lost.get(entry.tenant, 0) + 1
        audit.lost = sum(lost.values())
        unknown: dict[str, int] = {}
        for request_id, row in rows.items():
            if request_id not in known:
                unknown[str(row["tenant_id"])] = unknown.get(str(row["tenant_id"]), 0) + 1
        audit.strangers = sum(unknown.values())
        for tenant, number in unknown.items():
            if number > lost.get(tenant, 0):
                detail = f"tenant {tenant}: {number} rows without a client, {lost.get(tenant, 0)} unanswered requests"
                yield Violation("nothing invented", detail)

    # -- sums ------------------------------------------------------------------------------------------------------

    async def _sums(self) -> list[Violation]:
        found = [
            Violation(check, str(dict(row))) for check, sql in _EMPTY.items() for row in await self._rows(sql)
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
            for counter in ("prompt", "generation"):
                if engine[counter]:
                    detail = f"engine {engine['boot_id']}: {engine[counter]} {counter} tokens unexplained"
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


_EMPTY = {
    "no hold is left": "SELECT request_id, tenant_id, state FROM holds WHERE state = 'open'",
    "no money is held, none is below zero": "SELECT tenant_id, balance, held FROM billing_accounts "
    "WHERE held <> 0 OR balance < 0",
    "nothing twice": "SELECT request_id, count(*) FROM usage_rows GROUP BY 1 HAVING count(*) > 1",
    "nothing is booked twice": "SELECT source_id, kind, count(*) FROM ledger_transfers WHERE kind = 'usage' "
    "GROUP BY 1, 2 HAVING count(*) > 1",
    "nothing is parked": "SELECT request_id, reason FROM settle_errors",
    "the ledger sums to zero": "SELECT sum(debit) AS debit, sum(credit) AS credit FROM ledger_balances "
    "HAVING sum(debit) <> sum(credit)",
    "credit granted is credit used and left": """
        SELECT b.tenant_id, b.balance, g.granted, u.cost, coalesce(x.uncollectible, 0) AS uncollectible
        FROM billing_accounts b
        JOIN (SELECT tenant_id, sum(amount) AS granted FROM ledger_transfers WHERE kind = 'grant' GROUP BY 1) g
            USING (tenant_id)
        LEFT JOIN (SELECT tenant_id, sum(cost) AS cost FROM usage GROUP BY 1) u USING (tenant_id)
        LEFT JOIN (SELECT tenant_id, sum(amount) AS uncollectible FROM ledger_transfers WHERE kind = 'uncollectible'
            GROUP BY 1) x USING (tenant_id)
        WHERE g.granted - coalesce(u.cost, 0) + coalesce(x.uncollectible, 0) <> b.balance""",
}
"""Queries that must return no row."""
