"""The index of results gives the dates and commits that the pages state, and pages state commits that exist."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
ROW = re.compile(
    r"^\| \[[^]]+\]\((?P<page>[\w-]+\.md)\) \|.*\| (?P<dates>[^|]*) \| (?P<commits>[^|]*)\|$", re.MULTILINE
)
DATE = re.compile(r"(?<![\d-])\d{4}-\d{2}-\d{2}(?![\d-])")
COMMIT = re.compile(r"\bcommits? ([0-9a-f]{7,12}\+?)")
HASH = re.compile(r"\b[0-9a-f]{7,12}\+?")
UNKNOWN = "(not in this history)"
"""Stands behind a commit that the history does not have: it was rewritten after the figures were measured."""


def rows() -> dict[str, tuple[str, str]]:
    """The columns date and commit of the index, by page."""
    found = ROW.finditer((RESULTS / "README.md").read_text())
    return {row["page"]: (row["dates"].strip(), row["commits"].strip()) for row in found}


def stated(text: str, what: Callable[[str], list[str]]) -> str:
    """What a page states first; empty where it states none."""
    return next(iter(what(text)), "")


@pytest.fixture(params=sorted(path.name for path in RESULTS.glob("*.md") if path.name != "README.md"))
def page(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_index_has_every_page_and_no_other() -> None:
    assert set(rows()) == {path.name for path in RESULTS.glob("*.md")} - {"README.md"}


def test_the_index_begins_with_the_date_and_the_commit_that_the_page_states_first(page: str) -> None:
    text, (dates, commits) = (RESULTS / page).read_text(), rows()[page]
    assert stated(dates, DATE.findall) == stated(text, DATE.findall), f"the date of {page}"
    assert stated(commits, HASH.findall) == stated(text, COMMIT.findall), f"the commit of {page}"


def test_whatever_else_the_index_says_of_a_page_stands_on_it(page: str) -> None:
    text, (dates, commits) = (RESULTS / page).read_text(), rows()[page]
    for each in [*DATE.findall(dates), *HASH.findall(commits)]:
        assert each in text, f"{page} says nothing of {each}"


def git(*arguments: str) -> str:
    """What git says about the repository; empty where there is none, or no git."""
    try:
        run = subprocess.run(
            ["git", *arguments],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return ""
    return run.stdout.strip()


@pytest.fixture(scope="module")
def history() -> list[str]:
    """The commits up to this one; skips in an export and in a shallow checkout, which do not have them."""
    if not (ROOT / ".git").exists() or git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("the history is not here")
    return git("rev-list", "HEAD").split()


def commits_of(path: Path) -> list[tuple[str, bool]]:
    """The commits that a page states, each with whether it is marked as unknown."""
    text = " ".join(path.read_text().split())
    stated = [(each[1], text[each.end() :]) for each in COMMIT.finditer(text)]
    if path == RESULTS / "README.md":
        for _, commits in rows().values():
            stated += [(each[0], commits[each.end() :]) for each in HASH.finditer(commits)]
    return [(commit.rstrip("+"), rest.lstrip().startswith(UNKNOWN)) for commit, rest in stated]


@pytest.mark.parametrize(
    "path",
    [path for path in sorted((ROOT / "docs").rglob("*.md")) if COMMIT.search(path.read_text())]
    + [RESULTS / "README.md"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_commit_that_a_page_states_is_in_the_history_or_marked(path: Path, history: list[str]) -> None:
    for commit, marked in commits_of(path):
        known = any(each.startswith(commit) for each in history)
        assert known != marked, f"{path.name}: {commit} is {'known, but marked' if known else 'unknown'}"
