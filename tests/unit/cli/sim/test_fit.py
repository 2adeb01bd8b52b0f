"""`penstock sim fit`: figures for people and machines, and mistakes in one line."""

import csv
import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from sim.pool.validation.replay import replay
from sim.pool.validation.sweep_fit import SweepFigures
from sim.pool.validation.sweeps import Point, Shape
from workers.catalog import load_catalog

runner = CliRunner()
TRUTH = SweepFigures(20_000.0, 0.010, 0.0005, 0.03)


def own_file(path: Path) -> Path:
    """A small sweep whose times are those of TRUTH with the rest of a catalog profile."""
    fixed = load_catalog().model("llama-3.3-70b").profile("tp2").plain
    rows: list[list[float]] = []
    for shape in (Shape(200, 20), Shape(2000, 20)):
        for users in (1, 2, 4, 8):
            said = replay(TRUTH.apply(fixed), Point(shape, users, 1.0, 1.0), shortest=1.0)
            rows.append([shape.input_tokens, shape.output_tokens, users, said.ttft_s, said.tpot_s])
    with path.open("w", newline="") as out:
        names = ("input_tokens", "output_tokens", "concurrency", "ttft_mean_s", "tpot_mean_s")
        csv.writer(out).writerows([names, *rows])
    return path


def test_an_own_sweep_becomes_a_profile(tmp_path: Path) -> None:
    out = tmp_path / "profile.toml"
    arguments = [str(own_file(tmp_path / "mine.csv")), "--profile", "llama-3.3-70b:tp2", "--out", str(out)]
    result = runner.invoke(app, ["sim", "fit", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["figures"]["step_base_s"] == pytest.approx(TRUTH.step_base_s, rel=0.1)
    assert found["median_errors"]["held out"]["tpot"] < 0.02
    assert {point["use"] for point in found["checked"]["points"]} == {"fitted", "held out"}
    lines = tomllib.loads(out.read_text())
    assert lines["sweep"] == "mine"
    assert lines["step_base_s"]["basis"] == "measured"
    assert found["profile"] == out.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such.csv"], "cannot read no-such.csv"),
        ([], "several sweeps; choose with --sweep; it has: llama-70b-fp8-2xh100"),
        (["--sweep", "llama"], "has no sweep 'llama'"),
        (["--sweep", "llama-70b-fp8-2xh100", "--hold-out", "long"], "not lengths such as 1024/8192"),
        (["--sweep", "llama-70b-fp8-2xh100", "--hold-out", "5/5"], "has no shape 5/5"),
        (["--sweep", "llama-70b-fp8-2xh100", "--profile", "llama-3.3-70b:tp3"], "has no profile 'tp3'"),
    ],
)
def test_mistakes_name_what_there_is(arguments: list[str], words: str) -> None:
    result = runner.invoke(app, ["sim", "fit", *arguments])
    assert result.exit_code != 0
    assert words in (result.output + str(result.exception or "")).replace("\n", " ")


def test_a_sweep_that_no_profile_names_needs_one(tmp_path: Path) -> None:
    result = runner.invoke(app, ["sim", "fit", str(own_file(tmp_path / "mine.csv"))])
    assert result.exit_code != 0
    assert "no profile of the catalog names the sweep 'mine'" in (
        result.output + str(result.exception or "")
    ).replace("\n", " ")
