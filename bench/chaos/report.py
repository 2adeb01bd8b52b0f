"""The result of a run as text, as a plot, and as docs/results/chaos.md."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.report import section
from bench.results import enlist
from bench.stack import ROOT

DOCS = ROOT / "docs"
RESULTS = {
    "finished": "#0b6e4f", "left": "#6699cc", "refused": "#edae49", "failed": "#d1495b", "broken": "#7d4f9e",
}  # fmt: skip
"""How requests end at their client, with the colour of the plot."""
SUMS = {
    "rows": "usage rows", "compared": "of them compared with the log of the engines",
    "delivered": "output tokens delivered", "billed": "output tokens billed",
    "generated": "output tokens that the engines' counters showed",
    "forgiven": "output tokens of failed engines, not charged",
    "lost": "output tokens delivered that killed processes lost",
    "unobserved": "tokens of dead engines that no scrape saw", "unanswered": "requests without any answer",
    "strangers": "of them with a row",
}  # fmt: skip
_HEAD = """# Random faults

Written by `make chaos ARGS="--faults 1000 --publish"`; do not edit. Faults of a seed are done to a whole platform under
a mixed load: streams, whole answers, answers with tools, two choices, clients that read slowly or leave, of four
organisations, one of which runs out of credit. Clients keep a journal of all that they receive. At every audit the load
stops, and three accounts of the same requests are compared (`bench/chaos/books.py`): the journal, the rows of the
books, and the log in which the simulated engines write what they generated for each request. One usage row per admitted
request, what was delivered is billed, no row has more than its engine generated, each row costs what its tokens cost,
and the ledger charges that, whatever the transfers (`bench/chaos/sums.py`). The ledger sums to zero and its seals
verify, no balance is below zero, no hold is left, and reconciliation explains every token that engines counted.
Delivered text is compared with what the engine generates for its prompt.

A killed process may lose what its last checkpoint does not hold, about a second of its streams. What an engine that was
killed had generated is not known; its requests are compared with the other two accounts only. A process that is stopped
before it is killed writes no checkpoint meanwhile, so the longest loss counts that time, too."""


def text(found: Mapping[str, Any]) -> str:
    """Return the tables."""
    parts = [verdict(found), _sums(found), _requests(found), _faults(found), _violations(found)]
    return "\n\n".join(part for part in parts if part)


def verdict(found: Mapping[str, Any]) -> str:
    """Return one sentence."""
    wrong = sum(len(audit["violations"]) for audit in found["audits"])
    books = "the books agree with the journal" if found["sound"] else f"{wrong} VIOLATIONS"
    minutes = found["took_s"] / 60
    return f"Seed {found['seed']}: {len(found['faults'])} faults in {minutes:.0f} minutes, {books}."


def _sums(found: Mapping[str, Any]) -> str:
    audits = found["audits"]
    rows = [[name, f"{sum(audit[key] for audit in audits):,}"] for key, name in SUMS.items()]
    rows.append(
        [
            "longest loss of a killed process, s",
            f"{max((a['longest_loss_s'] for a in audits), default=0):.2f}",
        ]
    )
    most = max((audit["most_unobserved"] for audit in audits), default=0)
    rows.append(["most unobserved tokens of one engine", f"{most:,}"])
    rows.append(["audits", str(len(audits))])
    rows.append(["engine incarnations", str(max((audit["engines"] for audit in audits), default=0))])
    return section("Books", ["", "sum"], rows)


def _requests(found: Mapping[str, Any]) -> str:
    requests, outcomes = Counter[str](), Counter[str]()
    for audit in found["audits"]:
        requests.update(audit["requests"])
        outcomes.update(audit["outcomes"])
    left = section(
        "Requests as their clients saw them", ["", "requests"], [[k, f"{v:,}"] for k, v in requests.items()]
    )
    right = section(
        "Usage rows by outcome", ["", "rows"], [[k, f"{v:,}"] for k, v in sorted(outcomes.items())]
    )
    return "\n\n".join(filter(None, (left, right)))


def _name(fault: Mapping[str, Any]) -> str:
    return f"{fault['kind']} {fault['target']}".strip()


def _faults(found: Mapping[str, Any]) -> str:
    counts = Counter(_name(fault) for fault in found["faults"])
    failed = Counter(
        _name(fault) for fault in found["faults"] if fault["said"].startswith(("FAILED", "left out"))
    )
    rows = [[name, str(times), str(failed[name] or "")] for name, times in sorted(counts.items())]
    return section("Faults", ["", "times", "not done"], rows)


def _violations(found: Mapping[str, Any]) -> str:
    rows = [
        [each["check"], each["detail"], each["request_id"]]
        for audit in found["audits"]
        for each in audit["violations"]
    ]
    return section("Violations", ["check", "", "request"], rows[:100])


def plot(found: Mapping[str, Any], path: Path) -> Path:
    """Draw how requests ended over time, above the faults; returns the path."""
    ends: Sequence[tuple[float, str]] = found["timeline"]
    last = max([at for at, _ in ends] + [fault["at_s"] for fault in found["faults"]] + [1.0])
    width = max(last / 120, 2.0)
    bins = [width * number for number in range(int(last / width) + 2)]
    names = sorted({_name(fault) for fault in found["faults"]}, reverse=True)
    with rc_context({"svg.hashsalt": "penstock", "font.size": 8}):
        figure = Figure(figsize=(10, 3 + 0.17 * len(names)), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 0.17 * max(len(names), 4)))
        by_result = [[at / 60 for at, result in ends if result == name] for name in RESULTS]
        above.hist(
            by_result, bins=[edge / 60 for edge in bins], weights=[[1 / width] * len(each) for each in by_result],
            stacked=True, color=list(RESULTS.values()), label=list(RESULTS),
        )  # fmt: skip
        above.set_ylabel("requests ended per second")
        above.legend(ncols=len(RESULTS), frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.18))
        for fault in found["faults"]:
            height = names.index(_name(fault))
            begin, end = fault["at_s"] / 60, (fault["at_s"] + max(fault["took_s"], 0.4)) / 60
            below.plot([begin, end], [height, height], color="#d1495b", linewidth=3, solid_capstyle="butt")
        below.set_yticks(range(len(names)), names)
        below.set_xlabel("minutes")
        for axes in (above, below):
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xlim(0, last / 60)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def publish(found: Mapping[str, Any], docs: Path = DOCS) -> list[Path]:
    """Write the page, its data and its plot; return the paths."""
    for name in ("data", "results"):
        (docs / name).mkdir(parents=True, exist_ok=True)
    data, page = docs / "data" / "chaos.json", docs / "results" / "chaos.md"
    data.write_text(json.dumps({name: value for name, value in found.items() if name != "timeline"}) + "\n")
    page.write_text(page_text(found))
    shows = f"the books after {len(found['faults']):,} random faults under a mixed load"
    command = 'make chaos ARGS="--faults 1000 --publish"'
    listed = enlist(docs, page.name, "Random faults", shows, command, found["machine"])
    return [data, plot(found, docs / "images" / "chaos.svg"), page, listed]


def page_text(found: Mapping[str, Any]) -> str:
    """Return the page."""
    given = found["machine"]
    measured = (
        f"{given['date'][:10]}, commit {given['commit']}, {given['machine']}, {given['clients']} clients"
    )
    condition = "" if given["disk"] else " No disk could be mounted, so faults of a full disk are left out."
    plotted = "![Requests by their end over time, above the faults](../images/chaos.svg)"
    return "\n\n".join([_HEAD, f"Run on {measured}.{condition}", text(found), plotted]) + "\n"
