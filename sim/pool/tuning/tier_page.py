"""Renders docs/results/kv-tiers.md: KV caches in host memory, and where they pay."""

from collections.abc import Sequence

from sim.pool.tuning.chunks import TIE
from sim.pool.tuning.gains import gain, gain_text
from sim.pool.tuning.knee import LOAD
from sim.pool.tuning.tiers import HOST_SHARE, TierFigures
from workers.kv_links import PCIE, REACHED

_HEAD = """# KV cache in host memory: where it pays

Written by `penstock sim tune tiers --markdown docs/results/kv-tiers.md --plot docs/images/kv-tiers.svg`; do not edit.
{played}

One engine of the profile, with the catalog's figures, with and without a second tier of its KV cache in host memory
(`kv_offload` of a profile: vLLM's native offloading or LMCache). The tier keeps what the engine's own cache evicts of
prompts. Its size is what the profile states, else {share:.0%} of the host's memory, divided among the engines of the
host; what comes back takes PCI Express 5.0 x16 of each GPU ({pcie:.0f} GB/s, of which {reached:.0%} arrives).

- **back** and **anew**: microseconds to bring one token's KV back, and to compute it.
- **knee**: the highest rate at which nine of ten requests are in time: means over {seeds} seeds, and the mean gain with
  its 95 % t interval (each seed's requests are played with and without the tier).
- The other figures are at one rate, {load} of the knee without the tier: share of prompt tokens from a cache, and the
  time to the first token.

**Verdict.** {verdict}
"""


def pairs(rows: Sequence[TierFigures]) -> list[tuple[TierFigures, TierFigures]]:
    """Return the rows in pairs: without and with the tier."""
    return list(zip(rows[::2], rows[1::2], strict=True))


def markdown(rows: Sequence[TierFigures], *, played: str, plot: str | None) -> str:
    """Return the page. `played` says when and with what; `plot` is the plot's path from the page, None = no plot."""
    head = _HEAD.format(
        played=played, share=HOST_SHARE, pcie=PCIE / 1e9, reached=REACHED, load=LOAD, verdict=verdict(rows),
        seeds=len(rows[0].knees_rps) if rows else 0,
    )  # fmt: skip
    lines = [head]
    if plot is not None:
        lines.append(f"![Knee with the tier over the knee without]({plot})\n")
    lines += [
        "| profile | workload | tokens on the GPUs, on the host | back, anew | knee | cached | TTFT p50 | TTFT p90 |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for bare, tier in pairs(rows):
        lines.append(
            f"| `{bare.profile}` | `{bare.workload}` | {bare.cache_tokens:,}, {tier.host_tokens:,} "
            f"({tier.host_gb:.0f} GB) | {tier.load_us:.2f}, {bare.prefill_us:.1f} us "
            f"| {bare.knee_rps:.2f} -> {tier.knee_rps:.2f}/s ({gain_text(gain(bare.knees_rps, tier.knees_rps))}) "
            f"| {bare.hit_rate:.0%} -> {tier.hit_rate:.0%} "
            f"| {bare.ttft_p50_s:.2f} -> {tier.ttft_p50_s:.2f} s | {bare.ttft_p90_s:.2f} -> {tier.ttft_p90_s:.2f} s |"
        )
    return "\n".join(lines) + "\n"


def verdict(rows: Sequence[TierFigures]) -> str:
    """Return where the tier raises the knee by more than TIE and beyond chance, and where it does not, in words."""
    gains: dict[str, list[str]] = {}
    for bare, tier in pairs(rows):
        found = gain(bare.knees_rps, tier.knees_rps)
        if found.mean > TIE and found.low > 0.0:
            gains.setdefault(bare.profile, []).append(f"{gain_text(found)} on `{bare.workload}`")
    idle = [name for name in dict.fromkeys(row.profile for row in rows) if name not in gains]
    words = [f"`{name}`: {', '.join(each)}" for name, each in gains.items()]
    pays = f"It pays for {'; '.join(words)}." if words else "It pays for no profile."
    others = ", ".join(f"`{name}`" for name in idle)
    rest = f" It does not raise the knee by more than {TIE:.0%} and beyond chance for {others}."
    return pays + (rest if idle else "")
