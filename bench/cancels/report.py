"""The result of a run as text, and as docs/results/cancels.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report import section
from bench.results import enlist
from bench.stack import ROOT

DOCS = ROOT / "docs"
STAGES = ("before the head", "before the first token", "in the middle", "at the end")
"""How far the answer had come when its client left."""
SUMS = {
    "rows": "usage rows", "compared": "of them compared with the log of the engines",
    "delivered": "output tokens delivered", "billed": "output tokens billed",
    "generated": "output tokens that the engines' counters showed",
    "unanswered": "requests whose client left before any answer", "strangers": "of them with a row",
}  # fmt: skip
_HEAD = """# Clients that leave

Written by `make cancels ARGS="--publish"`; do not edit. Clients of three organisations send chat and text completions,
messages and responses, streamed and whole, one after another and several at once on a connection, to a platform with
two API processes and two simulated engines. They leave at random instants: whatever has come, at the head, after some
tokens, at the last byte, or with half a request sent, by an orderly end or by a reset. Every prompt occurs once and the
simulated engine's answer follows from it, so that each part of an answer tells whose it is.

Of each answer the text, its ids, its framing and its usage are compared with those of its own request while it arrives
(`bench/cancels/answers.py`). Afterwards each request that reached an engine has exactly one usage row, which names the
end user that the request named; what was delivered is billed, and no row has more than its engine generated; each row
costs what its tokens cost, the ledger charges that, and no hold is left (`bench/chaos/books.py`,
`bench/chaos/sums.py`)."""


def text(found: Mapping[str, Any]) -> str:
    """Return the tables."""
    return "\n\n".join(filter(None, (verdict(found), _left(found), _sums(found), _violations(found))))


def verdict(found: Mapping[str, Any]) -> str:
    """Return one sentence."""
    wrong = len(found["audit"]["violations"])
    told = (
        "no answer crossed another, and each request is billed once"
        if found["sound"]
        else f"{wrong} VIOLATIONS"
    )
    requests = sum(found["requests"].values())
    left = f"{found['cancels']:,} clients left in {found['took_s']:.0f} s"
    return f"Seed {found['seed']}: {left}, of {requests:,} requests on {found['connections']:,} connections: {told}."


def _left(found: Mapping[str, Any]) -> str:
    rows = [
        [kind, *(f"{by_stage.get(stage, 0):,}" for stage in STAGES)]
        for kind, by_stage in sorted(found["left"].items())
    ]
    return section("Clients that left", ["", *STAGES], rows)


def _sums(found: Mapping[str, Any]) -> str:
    rows = [[name, f"{found['audit'][key]:,}"] for key, name in SUMS.items()]
    rows.append(["requests that followed another on its connection", f"{found['reused']:,}"])
    rows.append(["answers read to their end", f"{found['read']:,}"])
    rows += [[f"answered {code}", f"{times:,}"] for code, times in found["refusals"].items()]
    return section("Requests and books", ["", "sum"], rows)


def _violations(found: Mapping[str, Any]) -> str:
    rows = [[each["check"], each["detail"], each["request_id"]] for each in found["audit"]["violations"]]
    return section("Violations", ["check", "", "request"], rows[:100])


def publish(found: Mapping[str, Any], docs: Path = DOCS) -> list[Path]:
    """Write the page and its data; return the paths."""
    data, page = docs / "data" / "cancels.json", docs / "results" / "cancels.md"
    data.write_text(json.dumps(found) + "\n")
    page.write_text(page_text(found))
    shows = f"answers and books after {found['cancels']:,} clients left at random instants"
    listed = enlist(
        docs, page.name, "Clients that leave", shows, 'make cancels ARGS="--publish"', found["machine"]
    )
    return [data, page, listed]


def page_text(found: Mapping[str, Any]) -> str:
    """Return the page."""
    given = found["machine"]
    measured = (
        f"Run on {given['date'][:10]}, commit {given['commit']}, {given['machine']}, {given['connections']} "
        "connections at the same time."
    )
    return "\n\n".join([_HEAD, measured, text(found)]) + "\n"
