"""The journals of studies go on at their own commit alone, and the ablation weighs points alike."""

from pathlib import Path
from typing import Any

import pytest

from bench.placement.__main__ import opened
from bench.placement.ablation import ablation_rows
from bench.placement.publish import BY_HAND, by_hand
from bench.placement.studies import Study
from bench.provenance import ROOT, commit_of, provenance
from core.errors import InvalidRequest
from sim.pool.journal import Journal
from sim.pool.knee import Knee
from sim.pool.registry import OURS

SUBJECT = {"workload": "w"}
ROW = {"policy": OURS, "seed": 1}


def test_a_journal_goes_on_at_the_commit_at_which_it_was_begun(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    assert opened(path, SUBJECT, "abc1234").notes == {"commit": "abc1234"}
    opened(path, SUBJECT, "abc1234").add([ROW])
    again = opened(path, SUBJECT, "abc1234")
    assert (again.notes, again.rows) == ({"commit": "abc1234"}, [ROW])
    with pytest.raises(InvalidRequest, match=r"study\.jsonl was begun at commit abc1234, this is def5678: "):
        opened(path, SUBJECT, "def5678")
    with pytest.raises(InvalidRequest, match="this is abc1234\\+"):
        opened(path, SUBJECT, "abc1234+")


@pytest.mark.parametrize("at", ["abc1234+", "unknown"])
def test_a_journal_whose_commit_does_not_tell_the_code_does_not_go_on(tmp_path: Path, at: str) -> None:
    opened(tmp_path / "study.jsonl", SUBJECT, at)
    with pytest.raises(InvalidRequest, match="figures of two versions do not mix"):
        opened(tmp_path / "study.jsonl", SUBJECT, at)


def test_a_journal_that_states_no_commit_does_not_go_on(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    Journal(path, SUBJECT, resume=False)
    assert opened(path, SUBJECT, "abc1234").notes == {"commit": "abc1234"}, (
        "it was stopped before its first line"
    )
    begun = Journal(path, SUBJECT, resume=False)
    begun.add([ROW])
    with pytest.raises(InvalidRequest, match=r"begun at commit \(not stated\), this is abc1234"):
        opened(path, SUBJECT, "abc1234")


def test_figures_state_changed_files_as_commit_of_does(tmp_path: Path) -> None:
    assert provenance()["commit"] == commit_of(ROOT)
    assert commit_of(tmp_path) == "unknown"


def test_every_point_of_the_ablation_counts_once_whatever_its_blocks() -> None:
    def played(workload: str, blocks: int, without: float) -> tuple[Study, Knee, list[dict[str, Any]]]:
        study = Study(workload, "m", 2, 8, "ablation", points=(("zero", 1.0),))
        return (
            study,
            Knee(10.0, 0.91, 5),
            [
                {
                    "policy": policy, "seed": 1, "shed": "zero", "load": 1.0,
                    "blocks": [{"s": 2.0, "n": 9, "met": 2.0 * rate, "ttft": [0.1]}] * blocks,
                }
                for policy, rate in ((OURS, 6.0), (f"{OURS}-sticky", without))
            ],
        )  # fmt: skip

    (sticky,) = ablation_rows([played("long", 30, 6.0), played("short", 3, 2.0)])
    assert sticky.over_all.value == pytest.approx((6.0 + 6.0) / (6.0 + 2.0) - 1.0)


def test_what_is_written_by_hand_stays_on_a_generated_page(tmp_path: Path) -> None:
    page = tmp_path / "ablation.md"
    assert by_hand(page) == ""
    page.write_text(f"# Old figures\n\n{BY_HAND}\n\n## By hand\n")
    page.write_text("# New figures\n" + by_hand(page))
    assert page.read_text() == f"# New figures\n\n{BY_HAND}\n\n## By hand\n"
    page.write_text("# Only figures\n")
    assert by_hand(page) == ""
