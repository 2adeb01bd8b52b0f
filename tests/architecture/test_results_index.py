"""The index of results gives the dates and commits that the pages state."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
ROW = re.compile(
    r"^\| \[[^]]+\]\((?P<page>[\w-]+\.md)\) \|.*\| (?P<dates>[^|]*) \| (?P<commits>[^|]*)\|$", re.MULTILINE
)
DATE = re.compile(r"(?<![\d-])\d{4}-\d{2}-\d{2}(?![\d-])")
COMMIT = re.compile(r"\bcommits? ([0-9a-f]{7,12}\+?)")
HASH = re.compile(r"\b[0-9a-f]{7,12}\+?")


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
