"""How long tests take, by kind; a kind is a folder of tests/. tests/conftest.py registers this plugin.

`--times FILE` keeps the figures of a call of pytest in FILE and prints those of all calls that FILE knows, so the last
call of `make test` shows the whole of it. docs/testing.md has the budget that they are compared with.
"""

import json
import time
from collections import Counter
from pathlib import Path

import pytest

SLOWEST = 20


class Times:
    """Adds up setup, call and teardown of each test; lives in the process that reports, never in xdist's workers."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._began = time.monotonic()
        self._tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test's setup, call or teardown has ended."""
        self._tests[report.nodeid] += report.duration  # type: ignore[assignment]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the figures of all calls so far, above pytest's own counts."""
        calls = json.loads(self._file.read_text()) if self._file.exists() else []
        calls.append({"clock_s": time.monotonic() - self._began, "tests": self._tests})
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(calls))
        terminalreporter.section("times")
        for line in table(calls):
            terminalreporter.write_line(line)


def kind(nodeid: str) -> str:
    """The folder below tests/ that a test lies in."""
    return nodeid.split("/")[1]


def table(calls: list[dict]) -> list[str]:
    """Seconds of work by kind, the time on the clock, and the slowest tests, as lines of text.

    Work is what tests took one by one: two workers do two seconds of it in a second on the clock.
    """
    tests: Counter[str] = sum((Counter(call["tests"]) for call in calls), Counter())
    number, work = Counter(map(kind, tests)), Counter()
    for nodeid, seconds in tests.items():
        work[kind(nodeid)] += seconds
    lines = [f"{'kind':<14}{'tests':>7}{'work':>9}"]
    lines += [f"{each:<14}{number[each]:>7}{work[each]:>7.0f} s" for each in work]
    clock_s = sum(call["clock_s"] for call in calls)
    lines += [f"{'total':<14}{number.total():>7}{work.total():>7.0f} s, {clock_s:.0f} s on the clock", ""]
    return lines + [f"{seconds:7.1f} s  {nodeid}" for nodeid, seconds in tests.most_common(SLOWEST)]
