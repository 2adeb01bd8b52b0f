"""`penstock sim scenario`: passes, failures and mistakes, for people and for machines."""

import json
from pathlib import Path

from typer.testing import CliRunner

from cli.main import app

runner = CliRunner()
ONE = ["sim", "scenario", "tie-starvation", "--seeds", "1"]


def test_ours_passes_and_the_table_says_what_was_asked() -> None:
    result = runner.invoke(app, ONE)
    assert result.exit_code == 0, result.output
    for text in ("tie-starvation", "pass", "at least 10 %"):
        assert text in result.output


def test_a_policy_with_the_fault_fails_and_so_does_the_command() -> None:
    result = runner.invoke(app, [*ONE, "--policy", "first_of_equals", "--json"])
    assert result.exit_code == 1
    (verdict,) = json.loads(result.stdout)
    assert (verdict["scenario"], verdict["policy"], verdict["passed"]) == (
        "tie-starvation",
        "first_of_equals",
        False,
    )
    idlest = verdict["findings"][0]
    assert (idlest["kind"], idlest["limit"], idlest["passed"]) == ("at_least", 0.1, False)
    assert idlest["value"] < 0.1


def test_mistakes_are_told_in_a_line() -> None:
    for arguments in (
        ["sim", "scenario", "no-such"],
        [*ONE, "--policy", "no-such"],
        [*ONE, "--markdown", str(Path("page.md"))],
    ):
        result = runner.invoke(app, arguments)
        assert result.exit_code == 2, arguments
        assert "Traceback" not in result.output
