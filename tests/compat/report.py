"""What became of the tools, as a table for people and as docs/compatibility.md."""

from datetime import date

from rich.table import Table

from tests.compat.play import INSTALLATION, Feature, Outcome

INTRODUCTION = """# Compatibility

Tools of others that run unchanged against Penstock, with a real vLLM behind it. `make compat` starts the platform with
the tiny model in a scratch directory and a second host with the embedding model, installs each tool in an environment
of its own, runs its script in `tests/compat/scripts/`, and fails when something broke that worked.
`tests/compat/tools.toml` pins the versions. `make compat ARGS=--publish` writes this page.

A tool gets the base address, the key and the models, as its documentation says; its script shows how. The tiny model
has random weights, so a tool call is forced by `tool_choice` and shaped by a schema. How well an agent does its work
is a matter of the model and no part of this.
"""


def table(outcomes: list[Outcome]) -> Table:
    """One row for each feature."""
    made = Table("tool", "version", "feature", "result", "detail")
    for outcome in outcomes:
        for each in outcome.features:
            made.add_row(
                outcome.tool.name,
                outcome.tool.version,
                each.feature,
                _result(outcome, each),
                each.detail[:160],
            )
    return made


def _result(outcome: Outcome, each: Feature) -> str:
    if each.feature in outcome.tool.known:
        return "works again" if each.ok else "known not to work"
    return "works" if each.ok else "BROKEN"


def _summary(outcome: Outcome) -> str:
    """The last column of the page."""
    if any(each.feature == INSTALLATION for each in outcome.features):
        return "not tried: could not be installed"
    works = sum(each.ok for each in outcome.features)
    return "works" if works == len(outcome.features) else f"{works} of {len(outcome.features)} work"


def page(outcomes: list[Outcome], day: date, commit: str) -> str:
    """The document: a row for each tool, below it what does not work and why."""
    rows, gaps = [], []
    for outcome in outcomes:
        works = [each.feature for each in outcome.features if each.ok]
        fails = [each for each in outcome.features if not each.ok]
        rows.append(
            f"| {outcome.tool.name} | {outcome.tool.version} | {'; '.join(works)} | {_summary(outcome)} |"
        )
        for each in fails:
            reason = outcome.tool.known.get(each.feature, each.detail).replace("\n", " ")
            gaps.append(f"* **{outcome.tool.name}**, {each.feature}: {reason}")
    lines = [INTRODUCTION, f"Measured on {day} at commit `{commit}`.\n"]
    lines += ["| tool | version | features that work | result |", "|---|---|---|---|", *rows]
    if gaps:
        lines += ["\n## What does not work\n", *gaps]
    return "\n".join(lines) + "\n"
