"""The verdict on a sustained load: errors, memory and books."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.load import report

Found = dict[str, Any]


def sample(at_s: float, **changed: Any) -> Found:
    made: Found = {
        "at_s": at_s, "open_streams": 100, "started": int(10 * at_s), "finished": int(9 * at_s),
        "tokens": int(90 * at_s), "events": 1000, "refused": {"503 no_capacity": 2}, "errors": {},
        "late_ms": {"p99": 5.0}, "ttft_ms": {}, "done": False, "memory": {"api": 100 << 20, "postgres": 50 << 20},
    }  # fmt: skip
    return made | changed


@pytest.fixture
def found() -> Found:
    """A run in which everything held."""
    samples = [sample(float(number)) for number in range(1, 41)]
    books = {
        "rows": samples[-1]["finished"] + 1, "output_tokens": samples[-1]["tokens"] + 1, "not_completed": 0,
        "open_holds": 0, "held": 0, "ledger": 0, "parked": 0, "ttft_p99_us": 9000, "queue_p99_us": 1000,
    }  # fmt: skip
    conditions = {
        "date": "2026-01-02T00:00:00", "commit": "abc", "machine": "m", "streams": 100, "rate_per_s": 10.0,
        "events_per_s": 5.0, "seconds": 40.0,
    }  # fmt: skip
    return {
        "conditions": conditions,
        "samples": samples,
        "books": books,
        "cores": {"api": 0.1, "postgres": 0.05},
    }


def test_a_run_in_which_everything_held(found: Found) -> None:
    assert report.missed(found) == []
    assert report.text(found).startswith("Everything held.")


def leaks(found: Found) -> None:
    for number, each in enumerate(found["samples"]):
        each["memory"]["api"] += number << 20


def fails(found: Found) -> None:
    found["samples"][-1]["errors"] = {"a stream lost events": 3}


def loses_a_row(found: Found) -> None:
    found["books"]["rows"] -= 1


def keeps_a_hold(found: Found) -> None:
    found["books"]["open_holds"] = 1


def opens_too_few(found: Found) -> None:
    for each in found["samples"]:
        each["open_streams"] = 90


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (leaks, "api grew from"),
        (fails, "3 errors: a stream lost events"),
        (loses_a_row, "the books have 360 rows"),
        (keeps_a_hold, "open_holds is 1"),
        (opens_too_few, "only 90 streams were open"),
    ],
)
def test_what_did_not_hold_is_said(found: Found, happens: Callable[[Found], None], said: str) -> None:
    changed = copy.deepcopy(found)
    happens(changed)
    (problem,) = report.missed(changed)
    assert said in problem
    assert problem in report.text(changed)


def test_the_page_is_written_and_listed(found: Found, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "README.md").write_text("# Results\n\n| [Other](other.md) | | | | |\n")
    written = report.publish(found, tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [
        "data/load.json", "images/load.svg", "results/load.md", "results/README.md"
    ]  # fmt: skip
    assert "100 streams at 5 events/s, 10 new requests/s." in (tmp_path / "results/load.md").read_text()
