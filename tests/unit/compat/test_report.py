"""docs/compatibility.md says what works, what does not and why, and what could not be tried."""

from datetime import date

from tests.compat.play import INSTALLATION, Feature, Outcome
from tests.compat.report import page
from tests.compat.tools import Tool, tools


def _tool(**fields: object) -> Tool:
    return Tool(
        **{
            "key": "one", "name": "One", "registry": "pypi", "packages": ["one==1.2"], "script": "x.py",
            "limit_s": 1, **fields,
        }
    )  # fmt: skip


def _page(*outcomes: Outcome) -> str:
    return page(list(outcomes), date(2026, 11, 23), "abc1234")


def test_a_tool_that_could_not_be_installed_is_not_shown_as_tried() -> None:
    outcome = Outcome(_tool(), [Feature(INSTALLATION, False, "the registry has\nno such version")])
    text = _page(outcome)
    assert "| One | 1.2 |  | not tried: could not be installed |" in text
    assert "* **One**, install: the registry has no such version" in text
    assert outcome.broken()


def test_what_fails_is_counted_and_has_its_known_reason() -> None:
    outcome = Outcome(_tool(known={"b": "it cannot"}), [Feature("a", True), Feature("b", False, "raw")])
    text = _page(outcome)
    assert "| One | 1.2 | a | 1 of 2 work |" in text
    assert "* **One**, b: it cannot" in text
    assert outcome.broken() == []
    assert Outcome(_tool(known={"a": "?"}), [Feature("a", True)]).mended() == ["a"]


def test_a_whole_tool_leaves_no_gap() -> None:
    text = _page(Outcome(_tool(), [Feature("a", True), Feature("b", True)]))
    assert "| One | 1.2 | a; b | works |" in text
    assert "What does not work" not in text
    assert "at commit `abc1234`" in text


def test_every_tool_is_pinned_exactly() -> None:
    for tool in tools():
        if tool.registry != "engine":
            assert all("==" in each or "@" in each[1:] for each in tool.packages), tool.packages
