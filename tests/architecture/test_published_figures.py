"""Pages that a bench writes a part of agree with the data that it wrote."""

import json
from pathlib import Path

from bench.placement.losses import losses_text
from bench.placement.publish import between_marks

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_what_others_win_is_what_the_data_of_the_comparison_say() -> None:
    page, data = DOCS / "simulator.md", DOCS / "data" / "scheduling-comparison.json"
    text = page.read_text()
    assert text == between_marks(text, losses_text(json.loads(data.read_text())))
