"""Pages that a bench writes a part of agree with the data that it wrote."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.placement.data import kept, kept_ablation
from bench.placement.losses import losses_text
from bench.placement.publish import between_marks, overview_text, page_text

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "data" / "scheduling-comparison.json").read_text())
    return found


def test_what_others_win_is_what_the_data_of_the_comparison_say(data: dict[str, Any]) -> None:
    text = (DOCS / "simulator.md").read_text()
    present = [each for each in kept(data) if each.study.group == "present"]
    assert text == between_marks(text, losses_text(present))


def test_the_summary_is_what_the_data_of_the_comparison_say(data: dict[str, Any]) -> None:
    text = (DOCS / "scheduling.md").read_text()
    assert text == between_marks(text, overview_text(kept(data), kept_ablation(data)))


def test_the_page_of_the_comparison_is_what_the_data_say(data: dict[str, Any]) -> None:
    compared = [each for each in kept(data) if each.study.group != "ablation"]
    assert (DOCS / "results" / "placement.md").read_text() == page_text(compared)
