"""Engines' token counters in PostgreSQL: one row per incarnation, and the instants at which it stood still.

Counters are cumulative and only ever raised here, so one report that is lost costs nothing and one that comes twice
changes nothing. Instants come as ages and are dated by the database's clock.
"""

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from workers.wire import EngineCounters


class Cut(msgspec.Struct, frozen=True):
    """An instant at which the engine had nothing to do, and its counters then."""

    age_s: float
    """Seconds ago."""
    prompt_tokens: int
    generation_tokens: int


class CounterReport(msgspec.Struct, frozen=True):
    """What is known of one engine incarnation."""

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


_AGO = "clock_timestamp() - make_interval(secs => CAST(:{} AS double precision))"
_STORE = text(
    f"""
    INSERT INTO engine_counters AS e (boot_id, replica_id, model, engine, simulated, last_seen, scraped_at, ended_at,
        prompt_tokens, generation_tokens, cached_prompt_tokens, warmup_prompt_tokens, warmup_generation_tokens)
    VALUES (:boot, :replica, :model, :engine, :simulated, {_AGO.format("seen_age")}, {_AGO.format("scrape_age")},
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
    """Store one report. Idempotent; an older one than what is stored changes nothing but the cuts it adds."""
    await connection.execute(
        _STORE,
        {
            "boot": report.boot_id,
            "replica": report.replica_id,
            "model": report.model,
            "engine": report.engine,
            "simulated": report.simulated,
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
