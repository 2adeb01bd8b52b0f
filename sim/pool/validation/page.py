"""Renders docs/results/validation.md: the step model beside published sweeps, single figures and an own measurement."""

from collections.abc import Sequence

from sim.pool.validation.published import AnchorResult
from sim.pool.validation.report import Validation
from sim.pool.validation.sweep_report import TPOT_LIMIT, TTFT_LIMIT, SweepError, overall

_HEAD = """# The step-time model beside measured and published figures

Written by `penstock sim validate --markdown docs/results/validation.md --plot docs/images/step-model.svg`; do not edit.
{played}

## Sweeps

Each sweep (users, TTFT, TPOT) is replayed on the simulated engine with the benchmark's own closed loop: lengths of 80
to 100 % of nominal, all users at once at first, ten requests each, cold caches, no speculation. Every second
concurrency, and of three lengths one if enough points are left, were kept out of the fit of the catalog's figures
(`penstock sim fit`). Points with a mean TTFT above 3 s had a full cache and are left out. TTFT is judged below 64
users: beyond, published means are those of the opening burst. Sources and licence:
`sim/pool/validation/data/README.md`. No sweep states its throughput{throughput}.

Medians of absolute errors over all points kept out: **TPOT {tpot:.1%}** (limit {tpot_limit:.0%}), **TTFT {ttft:.1%}**
(limit {ttft_limit:.0%}).
"""

_PLOT = """
Points are measured (hollow: kept out; grey: full cache), lines are replayed. Throughput follows from TTFT and TPOT.

![Throughput per GPU against interactivity, one panel per model and machine]({path})
"""


def markdown(
    sweeps: Sequence[SweepError],
    not_validated: Sequence[str],
    anchors: Sequence[AnchorResult],
    measured: Validation,
    *,
    played: str,
    plot: str | None,
) -> str:
    """Return the page. `played` says when and with what; `plot` is the plot's path from the page, None = no plot."""
    tpot, ttft = overall(sweeps)
    stated = any(each.throughput_median() is not None for each in sweeps)
    head = _HEAD.format(
        played=played,
        throughput=" except where the table has it" if stated else "",
        tpot=tpot,
        ttft=ttft,
        tpot_limit=TPOT_LIMIT,
        ttft_limit=TTFT_LIMIT,
    )
    parts = [
        head,
        *_sweep_table(sweeps),
        _PLOT.format(path=plot) if plot is not None else "",
        "### The worst point of each sweep\n",
        *_worst_table(sweeps),
        "",
        "### Profiles without a sweep\n",
        "Their figures are `unvalidated`, and the pools' views show them so: "
        + ", ".join(f"`{name}`" for name in not_validated)
        + ". Speculation (`accept_per_step`, `step_drafts_s`) is not validated by any sweep.\n",
        "## Single published figures\n",
        "`calibrated`: a figure of the catalog was computed from it, so that agreement shows no more than correct "
        "arithmetic.\n",
        *_anchor_table(anchors),
        "",
        "## Own measurement\n",
        *_measured(measured),
    ]
    return "\n".join(parts)


def _sweep_table(sweeps: Sequence[SweepError]) -> list[str]:
    lines = [
        "| sweep | profiles | points (kept out) | TPOT fitted | TPOT kept out | TTFT fitted | TTFT kept out "
        "| throughput |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in sweeps:
        kept_out = sum(point.use == "held out" for point in each.points)
        lines.append(
            f"| {each.title} | {', '.join(f'`{name}`' for name in each.profiles)} | {len(each.points)} ({kept_out}) | "
            f"{_share(each.tpot_median('fitted'))} | {_share(each.tpot_median('held out'))} | "
            f"{_share(each.ttft_median('fitted'))} | {_share(each.ttft_median('held out'))} | "
            f"{_share(each.throughput_median())} |"
        )
    return lines


def _worst_table(sweeps: Sequence[SweepError]) -> list[str]:
    lines = [
        "| sweep | point | TPOT measured | replayed | error | cause, where it is known |",
        "|---|---|---|---|---|---|",
    ]
    for each in sweeps:
        worst = each.worst
        lines.append(
            f"| {each.title} | {worst.shape}, {worst.concurrency} users, {worst.use} | {1e3 * worst.tpot_s:.1f} ms | "
            f"{1e3 * worst.replayed_tpot_s:.1f} ms | {worst.tpot_error:+.0%} | {each.cause} |"
        )
    return lines


def _anchor_table(anchors: Sequence[AnchorResult]) -> list[str]:
    lines = [
        "| profile | figure | published | replayed | error | | source |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in anchors:
        anchor = each.anchor
        lines.append(
            f"| `{anchor.model}:{anchor.profile}` | {anchor.name} | {anchor.published:,.4g} {anchor.unit} | "
            f"{each.predicted:,.4g} {anchor.unit} | {each.error:+.0%} | "
            f"{'calibrated' if anchor.calibrated else 'predicted'} | {anchor.source} |"
        )
    return lines


def _measured(measured: Validation) -> list[str]:
    lines = [
        f"`make bench-engine`: {measured.engine} on {measured.machine}, {measured.date}. Fitted to the load "
        f"'{measured.fit_on}', the model predicts the 50th and 90th percentiles of the other loads with a median "
        f"error of {measured.median_error():.0%}. The machine was shared while it was measured: the engine's time per "
        "token at light load was higher than at half load, which no model explains.\n",
        "| load | requests | TTFT p50 | TTFT p90 | TPOT p50 | TPOT p90 |",
        "|---|---|---|---|---|---|",
    ]
    for load in measured.loads:
        cells = " | ".join(
            f"{load.errors[name]:+.0%}" for name in ("ttft_p50", "ttft_p90", "tpot_p50", "tpot_p90")
        )
        name = f"{load.load} ({load.rate:g}/s{', fitted' if load.fitted else ''})"
        lines.append(f"| {name} | {load.requests} | {cells} |")
    return [*lines, ""]


def _share(error: float | None) -> str:
    return "-" if error is None else f"{error:.1%}"
