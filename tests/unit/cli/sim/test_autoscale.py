"""`penstock sim autoscale`: figures for people and machines, and mistakes in one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app

runner = CliRunner()
SMALL = [
    "sim",
    "autoscale",
    "--hours",
    "0.5",
    "--peak",
    "1",
    "--seeds",
    "1",
    "--tuning-days",
    "1",
    "--replicas",
    "4",
]


def test_the_antiphase_day_is_played_with_the_policies_that_know_hosts(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["--workload", "antiphase", "--policies", "static,wva", "--json", str(out)]
    result = runner.invoke(app, [*SMALL, "--target", "0.9", *arguments])
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert [row["policy"] for row in found] == ["static"]
    assert {row["workload"] for row in found} == {"antiphase"}
    for row in found:
        assert row["gpu_hours"] == pytest.approx(row["knob"] * 8 * 0.5, rel=0.01), "hosts are paid for whole"
    assert "per token" in result.output
    assert {row["figures"] for row in found} == {"unvalidated"}, "no sweep of DeepSeek V3.2 on this profile"
    assert "Unvalidated figures, for want of a sweep: deepseek-v3.2." in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workload", "no-such"], "antiphase"),
        (["--workload", "antiphase", "--policies", "wva"], "antiphase is played with: static"),
        (["--policies", "no-such"], "bound"),
    ],
)
def test_mistakes_name_what_there_is(arguments: list[str], words: str) -> None:
    result = runner.invoke(app, [*SMALL, *arguments])
    assert result.exit_code != 0
    assert words in result.output + str(result.exception or "")
