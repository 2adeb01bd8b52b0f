"""Renders docs/results/scenarios.md: each scenario's assertions, Penstock's figures and those of the failing
policies.
"""

from collections.abc import Mapping, Sequence

from sim.pool.registry import OURS
from sim.pool.scenarios.registry import SEEDS, Verdict
from sim.pool.scenarios.shipped import SHIPPED

_HEAD = """# Failure modes of routers, as scenarios

Written by `penstock sim scenario --markdown docs/results/scenarios.md`; do not edit. {played}

Every failure mode below was shipped by some router, or is one that we fear. Each is a small simulated run with seeds
{seeds} and limits on its figures. A figure is the worst of the seeds, bold where it is beyond its
limit. In the last column is who must fail, so that the scenario is known to bite: a published policy, or a router
reduced to the fault as it was shipped. `penstock sim scenario NAME --policy P` plays one of them under any policy.
"""


def markdown(verdicts: Mapping[str, Sequence[Verdict]], played: str) -> str:
    """Return the page. `verdicts` by scenario lists Penstock's first, then those that must fail; `played` says
    when it ran.
    """
    rows = [
        "| scenario | source | asserted | penstock | fails it |",
        "|---|---|---|---|---|",
        *(_row(each) for each in verdicts.values()),
    ]
    abouts = [f"- **{each[0].scenario.name}**. {each[0].scenario.about}" for each in verdicts.values()]
    named = {verdict.policy for each in verdicts.values() for verdict in each}
    faults = [f"- `{name}`: {about}" for name, about in SHIPPED.items() if name in named]
    return "\n".join(
        [
            _HEAD.format(played=played, seeds=", ".join(map(str, SEEDS))),
            *rows,
            "",
            "## What happened, and what is played",
            "",
            *abouts,
            "",
            "## Routers with a fault as shipped",
            "",
            *faults,
            "",
        ]
    )


def _row(verdicts: Sequence[Verdict]) -> str:
    ours = next(each for each in verdicts if each.policy == OURS)
    others = [each for each in verdicts if each.policy != OURS]
    asserted = "<br>".join(f"{finding.what}: {finding.bound}" for finding in ours.findings)
    figures = "<br>".join(_figures(ours))
    failing = "<br>".join(f"`{each.policy}`: {', '.join(_figures(each))}" for each in others)
    return f"| {ours.scenario.name} | {ours.scenario.source} | {asserted} | {figures} | {failing} |"


def _figures(verdict: Verdict) -> list[str]:
    """Return all figures, with those outside their limits in bold."""
    return [finding.figure if finding.ok else f"**{finding.figure}**" for finding in verdict.findings]
