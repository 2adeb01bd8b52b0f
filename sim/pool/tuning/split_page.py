"""Renders docs/results/prefill-split.md: prefill apart from decode, and where it pays."""

from collections.abc import Sequence
from itertools import groupby

from sim.pool.tuning.chunks import TIE
from sim.pool.tuning.knee import LOAD
from sim.pool.tuning.play import PAUSE_S
from sim.pool.tuning.split import ENGINES, SplitFigures

_HEAD = """# Prefill apart from decode: where it pays

Written by `penstock sim tune split --markdown docs/results/prefill-split.md --plot docs/images/prefill-split.svg`; do
not edit.
{played}

{engines} engines of the profile, with the catalog's figures: undivided, or divided into engines that compute prompts
and engines that answer. The KV cache of a prompt moves over the links of its engine's GPUs: NVLink where all engines
are on one host, else 400 Gbit/s of network a GPU; four fifths of a link's rate arrive. What a decode engine holds of a
prompt does not move. Routing is the same everywhere: the engine that holds most of the prompt, unless it is much busier
than another.

- **knee**: the highest rate, of all engines together, at which nine of ten requests are in time: within the targets of
  the model, and no pause of the answer beyond {pause} s.
- The other figures are at one rate, {load} of the knee of the undivided engines. **pause**: nine of ten answers have no
  longer one.

**Verdict.** {verdict}
"""

Group = tuple[str, str, list[SplitFigures]]


def groups(rows: Sequence[SplitFigures]) -> list[Group]:
    """Return profile, workload and rows of each comparison; the undivided engines come first."""
    keyed = groupby(rows, key=lambda row: (row.profile, row.workload))
    return [(profile, workload, list(found)) for (profile, workload), found in keyed]


def markdown(rows: Sequence[SplitFigures], *, played: str, plot: str | None) -> str:
    """Return the page. `played` says when and with what; `plot` is the plot's path from the page, None = no plot."""
    head = _HEAD.format(played=played, engines=ENGINES, pause=PAUSE_S, load=LOAD, verdict=verdict(rows))
    lines = [head]
    if plot is not None:
        lines.append(f"![Knee of each division over that of the undivided engines]({plot})\n")
    lines += [
        "| profile | workload | engines | knee | TTFT p50 | TTFT p90 | TPOT p50 | TPOT p90 | pause |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for profile, workload, found in groups(rows):
        for row in found:
            names = (f"`{profile}`", f"`{workload}`") if not row.prefill else ("", "")
            lines.append(
                f"| {names[0]} | {names[1]} | {layout(row)} "
                f"| {row.knee_rps:.2f}/s ({row.knee_rps / found[0].knee_rps - 1:+.0%}) "
                f"| {row.ttft_p50_s:.2f} s | {row.ttft_p90_s:.2f} s | {1e3 * row.tpot_p50_s:.1f} ms "
                f"| {1e3 * row.tpot_p90_s:.1f} ms | {1e3 * row.pause_p90_s:.0f} ms |"
            )
    return "\n".join(lines) + "\n"


def layout(row: SplitFigures) -> str:
    """Return a division in words."""
    if not row.prefill:
        return f"{row.decode} undivided"
    return f"{row.prefill} + {row.decode}, {row.link} ({row.move_us:.2f} us a token)"


def verdict(rows: Sequence[SplitFigures]) -> str:
    """Return where the best division raises the knee by more than TIE on every workload of a profile, in words."""
    shares: dict[str, dict[int, list[float]]] = {}
    for profile, _, found in groups(rows):
        for row in found[1:]:
            own = shares.setdefault(profile, {}).setdefault(row.prefill, [])
            own.append(row.knee_rps / found[0].knee_rps)
    words = []
    for profile, divisions in shares.items():
        count, knees = max(divisions.items(), key=lambda item: min(item[1]))
        judged = "pays" if min(knees) > 1.0 + TIE else "ties" if min(knees) > 1.0 - TIE else "loses"
        span = ", ".join(f"{each - 1.0:+.0%}" for each in knees)
        words.append(f"`{profile}`: the best division, {count} + {ENGINES - count}, {judged} ({span}).")
    return " ".join(words)
