"""The page about ranks of attention data parallelism."""

from collections.abc import Sequence

from sim.pool.tuning.ranks import MODEL, RankFigures


def markdown(rows: Sequence[RankFigures], *, hosts: int, played: str) -> str:
    """Return the page; `played` states date and version."""
    lines = [
        "# Ranks of attention data parallelism",
        "",
        "Written by `penstock sim tune ranks --markdown docs/results/ranks.md`; do not edit.",
        played,
        "",
        f"`{MODEL}`, {hosts} host{'s' if hosts > 1 else ''} of 8 B300, with the catalog's unvalidated figures,",
        "under our scheduler: the profile `tp8`, and `dp8` with eight ranks that take every step together, each with a",
        "KV cache of its own (`sim/engine/step_model/lockstep.py`). Either the engine chooses the rank; it knows the",
        "ranks' requests and nothing of their caches. Or every rank is a target of the scheduler's, as live",
        "([ADR 46](../adr/0046-ranks-are-routing-targets.md)). Prefixes are mirrored. Two seeds, no refusals.",
        "",
        "**in time**: within the targets of the model, first token and time per token. **hits**: share of prompt",
        "tokens found in a cache.",
        "",
        "| workload | rate | arrangement | in time | hits | TTFT p50 | TTFT p90 | TPOT p50 |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
        *map(_line, rows),
        "",
        "What flatters the engine's own choice: it sees the requests of all ranks without delay. Both profiles'",
        "figures are computed, not measured, so the comparison of `tp8` and `dp8` is worth as much as these; that",
        "between the two ways to choose a rank depends on them less.",
        "",
    ]
    return "\n".join(lines)


def _line(row: RankFigures) -> str:
    return (
        f"| `{row.workload}` | {row.rate_rps:g}/s | {row.arrangement} | {row.in_time:.1%} | {row.hit_rate:.0%} "
        f"| {row.ttft_p50_s:.2f} s | {row.ttft_p90_s:.2f} s | {1e3 * row.tpot_p50_s:.1f} ms |"
    )
