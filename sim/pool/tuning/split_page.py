"""Renders docs/results/prefill-split.md: prefill apart from decode, and where it pays."""

from collections.abc import Sequence
from itertools import groupby

from sim.pool.stats import Interval
from sim.pool.tuning.chunks import TIE
from sim.pool.tuning.gains import gain, gain_text
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
  the model, and no pause of the answer beyond {pause} s: means over {seeds} seeds, and the mean gain with its 95 % t
  interval (each seed's requests are played with every division).
- The other figures are at one rate, {load} of the knee of the undivided engines. **pause**: nine of ten answers have no
  longer one.

**Verdict.** {verdict}

**Not built.** A request is placed on one engine. Divided, it would need two placements under one hold and one deadline:
of the prompt when it arrives, of the answer when its KV cache can move; roles of engines in profile and heartbeat; one
usage record from the counters of two engines; and an autoscaler that moves the division with the traffic. The last
decides: of the divisions below the best changes the knee by {best:+.0%} and the worst by {worst:+.0%}. Which of them a
division is follows from the prompt tokens for each token of an answer, and those change by the hour. Until a pair has
run on these GPUs, no profile divides ([ADR 47](../adr/0047-engine-options-follow-the-simulation.md)).
"""

Group = tuple[str, str, list[SplitFigures]]


def groups(rows: Sequence[SplitFigures]) -> list[Group]:
    """Return profile, workload and rows of each comparison; the undivided engines come first."""
    keyed = groupby(rows, key=lambda row: (row.profile, row.workload))
    return [(profile, workload, list(found)) for (profile, workload), found in keyed]


def markdown(rows: Sequence[SplitFigures], *, played: str, plot: str | None) -> str:
    """Return the page. `played` says when and with what; `plot` is the plot's path from the page, None = no plot."""
    gains = [
        gain(found[0].knees_rps, row.knees_rps).mean for _, _, found in groups(rows) for row in found[1:]
    ]
    head = _HEAD.format(
        played=played, engines=ENGINES, pause=PAUSE_S, load=LOAD, verdict=verdict(rows),
        best=max(gains), worst=min(gains), seeds=len(rows[0].knees_rps),
    )  # fmt: skip
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
                f"| {row.knee_rps:.2f}/s ({gain_text(gain(found[0].knees_rps, row.knees_rps))}) "
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
    """Return in words where the best division raises the knee on every workload of a profile: by more than TIE and
    beyond chance."""
    shares: dict[str, dict[int, list[Interval]]] = {}
    for profile, _, found in groups(rows):
        for row in found[1:]:
            own = shares.setdefault(profile, {}).setdefault(row.prefill, [])
            own.append(gain(found[0].knees_rps, row.knees_rps))
    words = []
    for profile, divisions in shares.items():
        count, gains = max(divisions.items(), key=lambda item: min(each.mean for each in item[1]))
        least = min(gains, key=lambda each: each.mean)
        pays = least.mean > TIE and all(each.low > 0.0 for each in gains)
        judged = "pays" if pays else "ties" if least.mean > -TIE else "loses"
        span = "; ".join(gain_text(each) for each in gains)
        words.append(f"`{profile}`: the best division, {count} + {ENGINES - count}, {judged} ({span}).")
    return " ".join(words)
