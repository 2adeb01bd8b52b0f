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
        "## A gate that sees the other ranks",
        "",
        "A prompt on one rank lengthens the steps of all, and the gate of a rank counts its own prompts only. Tried",
        "on 2026-11-27 (with `warm_slack` at 1.2) and not adopted, on `mixed` with ranks as targets; six seeds,",
        "paired differences of in time in points, with intervals of 95 %:",
        "",
        "| change | 6/s | 10/s |",
        "|---|---:|---:|",
        "| gate and predictions use the prefill share of all ranks | -3.7 (-5.7 to -1.7) | -17.0 (-26.9 to -7.1) |",
        "| the gate alone | +0.3 (-1.3 to +1.9) | -5.8 (-17.2 to +5.6) |",
        "| predictions alone | -5.3 (-8.4 to -2.2) | -13.7 (-22.2 to -5.1) |",
        "| both, and learnt speeds count prompts of all ranks | -1.7 (-3.8 to +0.4) | -12.2 (-23.3 to -1.0) |",
        "| learnt speeds alone count prompts of all ranks | +0.6 (+0.4 to +0.9) | -0.6 (-7.7 to +6.5) |",
        "| predictions use the longest step over all ranks | -0.6 (-2.0 to +0.9) | -4.7 (-10.5 to +1.2) |",
        "",
        "With the share of all ranks every rank of an engine has the same predicted time per token beside its batch,",
        "and the cost of a placement no longer keeps a prompt off the ranks that compute others: hits fall from 80.8",
        "to 79.3 % at 6/s and from 81.6 to 79.2 % at 10/s with the predictions alone. A gate that uses the longest",
        "step, too, serves about a third in time at 6/s (two seeds): one full rank then closes all others.",
        "",
    ]
    return "\n".join(lines)


def _line(row: RankFigures) -> str:
    return (
        f"| `{row.workload}` | {row.rate_rps:g}/s | {row.arrangement} | {row.in_time:.1%} | {row.hit_rate:.0%} "
        f"| {row.ttft_p50_s:.2f} s | {row.ttft_p90_s:.2f} s | {1e3 * row.tpot_p50_s:.1f} ms |"
    )
