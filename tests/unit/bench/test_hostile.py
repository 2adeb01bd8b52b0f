"""The page on hostile bodies: verdict by the whole interval, data and line in the list of results."""

import json
from pathlib import Path
from typing import Any

from bench.hostile import report


def run(p99_ms: float, lost: int = 0) -> dict[str, Any]:
    """The measurement of one run."""
    return {
        "events": 12_800, "delay_p50_ms": 1.0, "delay_p99_ms": p99_ms, "delay_max_ms": p99_ms + 5, "lost": lost,
        "cpu_s": {"api": 2.0}, "window_s": 10.0, "waited_s": 0.1,
    }  # fmt: skip


def found(*moves_ms: float, lost: int = 0) -> dict[str, Any]:
    """A result whose pairs move by so many milliseconds."""
    conditions = {
        "date": "2026-11-24T12:00:00+00:00", "commit": "abc1234", "machine": "x86_64", "load_average": 1.0,
        "streams": 64, "pace_ms": 50, "rate_per_s": 100.0, "seconds": 10.0,
    }  # fmt: skip
    pairs = [{"quiet": run(4.0), "hostile": run(4.0 + move, lost)} for move in moves_ms]
    return {"conditions": conditions, "pairs": pairs, "answers": {"nested: 400": 700}}


def test_the_whole_interval_must_meet_the_target() -> None:
    assert report.met(found(3, 5, 8, 2, 4, 6))
    assert "by 4.5 ms (2.0 to 8.0, 6 pairs; at most 20): met." in report.text(found(3, 5, 8, 2, 4, 6))
    late = found(3, 5, 28, 2, 4, 6)
    assert not report.met(late)
    assert "MISSED" in report.text(late)


def test_a_lost_chunk_misses_the_target() -> None:
    assert not report.met(found(3, 5, 8, 2, 4, 6, lost=1))


def test_the_page_is_written_with_its_data_and_listed(tmp_path: Path) -> None:
    for name in ("results", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "results" / "README.md").write_text(
        "| set | a | b | c | d |\n|---|---|---|---|---|\n| [X](x.md) | | | | |\n"
    )
    result = found(3, 5, 8, 2, 4, 6)
    written = report.publish(result, docs=tmp_path)
    assert [path.name for path in written] == ["hostile.json", "hostile.md", "README.md"]
    assert json.loads(written[0].read_text()) == result
    page = written[1].read_text()
    assert "commit abc1234" in page
    assert "| nested: 400 " in page
    assert "| [Hostile bodies](hostile.md) |" in written[2].read_text()
