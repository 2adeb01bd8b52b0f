"""What DCGM and nccl-tests print is read, also where they fail."""

from pathlib import Path

import pytest

from workers.acceptance import dcgm, nccl
from workers.acceptance.commands import Run

RECORDED = Path(__file__).parents[3] / "data" / "acceptance"


def printed(name: str, status: int = 0) -> Run:
    return Run(status, (RECORDED / name).read_text())


def test_a_diagnostic_that_passes_names_its_tests() -> None:
    reading = dcgm.parse(printed("dcgm-4-pass.json"))
    assert (reading.version, reading.passed, reading.failures, reading.error) == (
        "4.2.3",
        ("software", "memory", "pcie"),
        (),
        "",
    )


def test_a_failure_names_its_gpu_with_its_severity() -> None:
    reading = dcgm.parse(printed("dcgm-4-memory.json", status=226))
    (failure,) = reading.failures
    assert (failure.test, failure.severity) == ("memory", 2)
    assert failure.text.startswith("GPU 3: ")
    assert reading.passed == ("software", "pcie")


def test_the_older_layout_is_read_behind_other_text() -> None:
    reading = dcgm.parse(printed("dcgm-3-pcie.json", status=226))
    (failure,) = reading.failures
    assert (reading.version, failure.test, failure.severity) == ("3.3.9", "PCIe", 0)
    assert failure.text.startswith("GPU 5: GPU 5 to host")
    assert reading.passed == ("Denylist",)


def test_a_failure_without_a_gpu_is_that_of_the_summary() -> None:
    (failure,) = dcgm.parse(printed("dcgm-4-summary.json", status=226)).failures
    assert (failure.test, failure.text, failure.severity, failure.error_id) == (
        "memory",
        "CUDA initialisation failed",
        1,
        36,
    )


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("Error: unable to establish a connection to the host engine", "host engine"),
        ("", "exit status 1"),
        ('{"DCGM Diagnostic": {"test_categories": []}}', "it ran no test"),
        ('{"DCGM Diagnostic": {"runtime_error": "no GPU is supported"}}', "no GPU is supported"),
        ('{"other": 1}', "it printed no result"),
        ('{"DCGM Diagnostic": {"test_categories": 7}}', "it printed no result"),
        ('{"DCGM Diag', "it printed no result"),
    ],
)
def test_a_diagnostic_without_a_result_is_no_pass(output: str, said: str) -> None:
    reading = dcgm.parse(Run(1, output))
    assert said in reading.error
    assert not reading.passed


def test_the_table_of_an_all_reduce_is_read() -> None:
    reading = nccl.parse(printed("all-reduce.txt"))
    assert (reading.bus_gb_per_s, reading.small_us) == (pytest.approx(474, abs=1), 22.4)
    assert not reading.wrong
    assert not reading.error


def test_wrong_results_are_counted() -> None:
    run = printed("all-reduce.txt")
    lines = run.output.splitlines()
    row = next(number for number, line in enumerate(lines) if line.strip().startswith("8 "))
    cells = lines[row].split()
    lines[row] = " ".join([*cells[:8], "3", *cells[9:]])
    assert nccl.parse(Run(0, "\n".join(lines))).wrong == 3


@pytest.mark.parametrize("run", [Run(1, "NCCL failure: unhandled system error"), Run(0, ""), Run(-1, "")])
def test_an_all_reduce_without_a_table_says_why(run: Run) -> None:
    assert nccl.parse(run).error


def test_an_all_reduce_that_dies_late_is_no_result() -> None:
    assert nccl.parse(printed("all-reduce.txt", status=139)).error
