"""Figures that no sweep validates are marked wherever a study shows them."""

from bench.placement.studies import STUDIES
from cli.commands.sim.tune import played
from sim.pool.pool import unvalidated, unvalidated_line
from workers.catalog import load_catalog


def test_a_name_is_a_model_or_one_of_its_profiles() -> None:
    names = ["llama-3.3-70b", "deepseek-v3.2:tp8", "deepseek-v3.2", "minimax-m2.5:tp4"]
    assert unvalidated(names, load_catalog()) == ["deepseek-v3.2", "deepseek-v3.2:tp8"]


def test_the_line_is_left_out_where_every_figure_is_validated() -> None:
    assert unvalidated_line([]) == []
    assert unvalidated_line(["a", "b"]) == ["Unvalidated figures, for want of a sweep: a, b."]


def test_pages_of_studies_name_their_unvalidated_profiles() -> None:
    assert "for want of a sweep: deepseek-v3.2:tp8." in played(["deepseek-v3.2:tp8", "llama-3.3-70b:tp2"])
    assert "Unvalidated" not in played(["llama-3.3-70b:tp2"])


def test_the_comparison_marks_studies_on_unvalidated_models() -> None:
    marked = {study.model for study in STUDIES if study.title.endswith(" (unvalidated)")}
    assert marked == {"deepseek-v3.2"}
