"""Engines' token counters in PostgreSQL: one row per engine incarnation, and its counters at consistent cuts.

Counters are cumulative and never decrease, so a lost report costs nothing and a repeated one changes nothing. Reports
hold ages; the database's clock turns them into instants.
"""

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from workers.wire import EngineCounters


class Cut(msgspec.Struct, frozen=True):
    """Counters at an instant at which the engine was idle."""

    age_s: float
    """Seconds since that instant."""
    prompt_tokens: int
    generation_tokens: int


class CounterReport(msgspec.Struct, frozen=True):
    """The state of one engine incarnation."""

    boot_id: str
    replica_id: str
    model: str
    engine: str
    simulated: bool
    counters: EngineCounters
    warmup: EngineCounters
    scrape_age_s: float
    """Seconds since the last scrape arrived."""
    seen_age_s: float
    """Seconds since the last heartbeat that named it."""
    ended: bool = False
    cuts: tuple[Cut, ...] = ()
    version: str = ""
    """Of the engine, by the last rollout."""


_AGO = "clock_timestamp() - make_interval(secs => CAST(:{} AS double precision))"
_STORE = text(
    f"""
    INSERT INTO engine_counters AS e (boot_id, replica_id, model, engine, simulated, version, last_seen, scraped_at,
        ended_at, prompt_tokens, generation_tokens, cached_prompt_tokens, warmup_prompt_tokens,
        warmup_generation_tokens)
    VALUES (:boot, :replica, :model, :engine, :simulated, :version,
        {_AGO.format("seen_age")}, {_AGO.format("scrape_age")},
        CASE WHEN :ended THEN {_AGO.format("seen_age")} END,
        :prompt, :generation, :cached, :warmup_prompt, :warmup_generation)
    ON CONFLICT (boot_id) DO UPDATE SET
        last_seen = greatest(e.last_seen, excluded.last_seen),
        scraped_at = greatest(e.scraped_at, excluded.scraped_at),
        ended_at = CASE WHEN excluded.ended_at IS NULL THEN NULL ELSE coalesce(e.ended_at, excluded.ended_at) END,
        prompt_tokens = greatest(e.prompt_tokens, excluded.prompt_tokens),
        generation_tokens = greatest(e.generation_tokens, excluded.generation_tokens),
        cached_prompt_tokens = greatest(e.cached_prompt_tokens, excluded.cached_prompt_tokens),
        warmup_prompt_tokens = greatest(e.warmup_prompt_tokens, excluded.warmup_prompt_tokens),
        warmup_generation_tokens = greatest(e.warmup_generation_tokens, excluded.warmup_generation_tokens)
    """  # noqa: S608 - made of constants, values are bound
)
_CUT = text(
    f"""
    INSERT INTO engine_cuts (boot_id, cut_at, prompt_tokens, generation_tokens)
    VALUES (:boot, {_AGO.format("age")}, :prompt, :generation) ON CONFLICT DO NOTHING
    """  # noqa: S608 - as above
)


async def record_counters(connection: AsyncConnection, report: CounterReport) -> None:
    """Store one report. Idempotent; a report older than the stored row adds only its cuts."""
    await connection.execute(
        _STORE,
        {
            "boot": report.boot_id,
            "replica": report.replica_id,
            "model": report.model,
            "engine": report.engine,
            "simulated": report.simulated,
            "version": report.version,
            "seen_age": report.seen_age_s,
            "scrape_age": report.scrape_age_s,
            "ended": report.ended,
            "prompt": report.counters.prompt_tokens,
            "generation": report.counters.generation_tokens,
            "cached": report.counters.cached_prompt_tokens,
            "warmup_prompt": report.warmup.prompt_tokens,
            "warmup_generation": report.warmup.generation_tokens,
        },
    )
    for cut in report.cuts:
        await connection.execute(
            _CUT,
            {
                "boot": report.boot_id,
                "age": cut.age_s,
                "prompt": cut.prompt_tokens,
                "generation": cut.generation_tokens,
            },
        )
