"""Renders docs/results/step-size.md: what each step size does, by profile, and which one the rule chooses."""

from collections.abc import Sequence

from sim.pool.tuning.chunks import CHUNK_S, TIE, SizeFigures, chosen
from sim.pool.tuning.play import PAUSE_S

_HEAD = """# Tokens of a step: throughput against pauses

Written by `penstock sim tune chunks --markdown docs/results/step-size.md`; do not edit.
{played}

A prompt is computed in chunks of at most `--max-num-batched-tokens`, and running answers pause for as long as one
takes. Large chunks make long pauses; small ones pay more often for what a step costs whatever it computes. Every size
is played on one engine of the profile, with the catalog's figures, on {workloads}:

- **knee**: the highest rate at which nine of ten requests are in time. In time means the targets of the model, and no
  pause of the answer beyond {pause:.1f} s.
- **pause**: nine of ten answers have no longer one. All sizes of a row are compared at one rate, 0.8 of the knee with
  8,192 tokens.

**Rule**: of the sizes whose knee is at least {tie:.0%} of the best one's, on the workload where it is lowest, the one
with the shortest pauses. Sizes that leave less than three quarters of a step to prompts while the batch is full are not
tried. The chosen size (bold) is the figure `max_batched_tokens` of the profile, from which the engine's flag follows.

A chunk is charged {chunk:.0f} ms beside its tokens and the step's alpha. Operation tables of MiniMax M2.5 on four B300
show as much (1k tokens take 52 ms, 8k take 115); the fits to whole sweeps cannot see it, because their prompts fit into
one chunk. `--chunk-ms 0` plays the same without this charge.
"""


def markdown(rows: Sequence[SizeFigures], *, played: str) -> str:
    """Return the page. `played` says when and with what."""
    names = list(dict.fromkeys(row.workload for row in rows))
    lines = [
        _HEAD.format(
            played=played,
            workloads=" and ".join(f"`{name}`" for name in names),
            pause=PAUSE_S,
            tie=1.0 - TIE,
            chunk=1e3 * CHUNK_S,
        ),
        f"| profile | tokens | {' | '.join(f'{name}: knee, pause' for name in names)} |",
        "|---|---:|" + "---:|" * len(names),
    ]
    for profile in dict.fromkeys(row.profile for row in rows):
        own = [row for row in rows if row.profile == profile]
        best = chosen(own)
        for size in sorted({row.size for row in own}):
            cells = [
                f"{row.knee_rps:.2f}/s, {1e3 * row.pause_p90_s:.0f} ms"
                for name in names
                for row in own
                if row.size == size and row.workload == name
            ]
            title, mark = (f"`{profile}`", "**") if size == best else ("", "")
            lines.append(f"| {title} | {mark}{size:,}{mark} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
