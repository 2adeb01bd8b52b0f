"""`penstock sim run`: figures on the terminal and in a file, and mistakes in one line."""

import json
import math
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.text_chart import columns

runner = CliRunner()
SHORT = [
    "sim",
    "run",
    "--workload",
    "shared-system-prompts",
    "--hosts",
    "1",
    "--rate",
    "4",
    "--seconds",
    "30",
]


def test_a_run_prints_its_figures_and_charts() -> None:
    result = runner.invoke(app, [*SHORT, "--fail", "host-1/llama-3.3-70b-0@10"])
    assert result.exit_code == 0, result.output
    for text in ("goodput", "TTFT p50", "Jain index", "waiting for a first token", "x real time"):
        assert text in result.output


def test_the_file_holds_what_is_needed_to_run_it_again_and_the_same_seed_gives_the_same(
    tmp_path: Path,
) -> None:
    figures = []
    for name in ("one.json", "two.json"):
        result = runner.invoke(app, [*SHORT, "--policy", "round_robin", "--json", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        figures.append(json.loads((tmp_path / name).read_text()))
    for each in figures:
        each.pop("wall_s")
    assert figures[0] == figures[1]
    assert figures[0]["policy"] == "round_robin"
    assert figures[0]["rate"] == 4.0
    assert figures[0]["finished"] == figures[0]["requests"] > 50


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rate", "1", "--workload", "no-such-thing"],
        ["--rate", "1", "--model", "no-such-model"],
        ["--rate", "1", "--policy", "no-such-policy"],
        ["--rate", "1", "--prefix", "psychic"],
        ["--rate", "1", "--fail", "nobody@10"],
        ["--rate", "1", "--fail", "api:7@10"],
        ["--rate", "1", "--fail", "nonsense"],
        [],
        ["--rate", "1", "--load", "1"],
        ["--rate", "1", "--json", "/nowhere/at/all.json"],
    ],
    ids=" ".join,
)
def test_mistakes_end_with_one_line_and_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    result = runner.invoke(app, ["sim", "run", "--seconds", "10", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith("penstock: ")
    assert result.stderr.strip().count("\n") == 0


def test_names_in_a_trace_are_text_and_no_markup(tmp_path: Path) -> None:
    trace = tmp_path / "[bold]odd.jsonl"
    trace.write_text(
        "".join(
            json.dumps({"timestamp": at, "input_length": 64, "output_length": 2, "tenant": f"[/t{at % 2}]"})
            + "\n"
            for at in range(20)
        )
    )
    result = runner.invoke(
        app, ["sim", "run", "--workload", str(trace), "--hosts", "1", "--rate", "1", "--seconds", "20"]
    )
    assert result.exit_code == 0, result.output
    assert "[/t0]" in result.stdout
    assert "[bold]odd.jsonl" in result.stdout


def test_the_first_interrupt_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **more: object) -> None:
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the work went on")

    monkeypatch.setattr("cli.commands.sim.run.simulate", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell began us with &
    try:
        assert runner.invoke(app, SHORT).exit_code == 130
    finally:
        signal.signal(signal.SIGINT, before)


def test_columns_are_as_high_as_their_values() -> None:
    lines = columns([0.0, 1.0, 2.0, math.nan, 4.0], height=2, unit=" s")
    assert lines == ["4 s ┤    █", "0 s ┤ ▄█ █"]
    assert columns([math.nan, math.nan], height=1) == [" 0 ┤  "]
