"""The factorial as tables: a row per placement, a column per queue."""

from collections.abc import Sequence

from bench.placement.studies import Study
from sim.pool.factorial import CROSSES
from sim.pool.report import Standing, number

QUEUES = {
    "engine": "engine's queue",
    "fifo": "our gate, first come first served",
    "ours": "our gate and order",
    "dynamo_queue": "Dynamo's queue",
    "llmd_flow": "llm-d's flow control",
}


def factorial_text(played: Sequence[tuple[Study, Sequence[Standing]]]) -> str:
    """Return the tables of all studies and points: goodput with half its interval, and TTFT p50 and p90."""
    parts = [
        "A queue decides when a request goes and which is next; a placement decides where, among the replicas that the "
        "queue leaves open. Goodput in requests/s, then TTFT p50 and p90 in seconds."
    ]
    for study, ranked in played:
        for shed, load in study.points:
            here = {row.policy: row for row in ranked if (row.shed, row.load) == (shed, load)}
            if here:
                parts.append(f"{study.title}, load {load:g}, shed {shed}:\n\n{_table(here)}")
    return "\n\n".join(parts)


def _table(here: dict[str, Standing]) -> str:
    lines = ["| placement | " + " | ".join(QUEUES.values()) + " |", "|---|" + "---:|" * len(QUEUES)]
    for placement in dict.fromkeys(cross.placement for cross in CROSSES):
        policies = {cross.queue: cross.policy for cross in CROSSES if cross.placement == placement}
        shown = [_cell(here.get(policies.get(queue, ""))) for queue in QUEUES]
        lines.append(f"| {placement} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _cell(row: Standing | None) -> str:
    if row is None:
        return "-"
    p50, p90 = (number(row.figures.get(name), 2) for name in ("ttft_p50_s", "ttft_p90_s"))
    return f"{row.goodput.value:.2f} ±{row.goodput.half:.2f}; {p50}, {p90}"
