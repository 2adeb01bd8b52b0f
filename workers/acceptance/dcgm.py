"""Runs NVIDIA's `dcgmi diag` at level 2 and reads its JSON.

Level 2 takes under two minutes: software, PCIe, memory and bandwidth (DCGM user guide, "DCGM Diagnostics"). DCGM 4
writes "DCGM Diagnostic" with results by entity and a summary of each test, DCGM 3 "DCGM GPU Diagnostic" with results by
`gpu_id` and null for a GPU that did not run; both have categories with tests with results. Text may stand before it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from workers.acceptance.commands import Run, run_tool
from workers.acceptance.readings import DcgmFailure, DcgmReading

COMMAND = ("dcgmi", "diag", "-r", "2", "-j")
TIMEOUT_S = 300.0
MAX_TEXT = 300
_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_FAILED = ("fail", "warn")


class _Result(msgspec.Struct):
    """A result on a GPU, or the summary of a test."""

    status: str = ""
    entity_group: str = "GPU"
    entity_id: int | str | None = None
    gpu_id: int | str | None = None
    gpu_ids: int | str | None = None
    warnings: Any = None

    @property
    def failed(self) -> bool:
        """Whether the test did not pass there; a test that was left out has not failed."""
        return self.status.lower() in _FAILED

    @property
    def where(self) -> str:
        """Which GPU it is about; empty = all."""
        if self.entity_id is not None:
            return f"{self.entity_group} {self.entity_id}: "
        which = self.gpu_id if self.gpu_id is not None else self.gpu_ids
        return f"GPU {which}: " if which not in (None, "") else ""


class _Test(msgspec.Struct):
    name: str = ""
    results: list[_Result | None] | None = None
    test_summary: _Result | None = None


class _Category(msgspec.Struct):
    tests: list[_Test | None] = []


class _Diagnostic(msgspec.Struct):
    test_categories: list[_Category] = []
    version: str = ""
    runtime_error: str = ""


async def diagnose(only: Sequence[int] | None = None) -> DcgmReading | None:
    """Run the diagnostic on the GPUs with these indices, or on all; None where DCGM is not installed.

    The GPUs must run nothing else.
    """
    chosen = () if only is None else ("-i", ",".join(str(index) for index in only))
    ran = await run_tool((*COMMAND, *chosen), TIMEOUT_S)
    return None if ran is None else parse(ran)


def parse(ran: Run) -> DcgmReading:
    """What the diagnostic printed. Its exit status says nothing: it is not 0 for a mere setting, too."""
    start, end = ran.output.find("{"), ran.output.rfind("}")
    try:
        document: dict[str, Any] = msgspec.json.decode(ran.output[start : end + 1]) if start >= 0 else {}
        root = next((document[name] for name in _ROOTS if name in document), None)
        found = msgspec.convert(root, _Diagnostic)
    except msgspec.MsgspecError:
        return DcgmReading("", (), (), error=f"it printed no result: {ran.last_line}")
    tests = [test for category in found.test_categories for test in category.tests if test is not None]
    if found.runtime_error or not tests:
        return DcgmReading(found.version, (), (), error=(found.runtime_error or "it ran no test")[:MAX_TEXT])
    failures = tuple(failure for test in tests for failure in _failures(test))
    failed = {failure.test for failure in failures}
    passed = tuple(test.name for test in tests if test.name not in failed and _passed(test))
    metadata = document.get("metadata")
    version = found.version or (str(metadata.get("version", "")) if isinstance(metadata, dict) else "")
    return DcgmReading(version, passed, failures)


def _passed(test: _Test) -> bool:
    return any(result is not None and result.status.lower() == "pass" for result in test.results or [])


def _failures(test: _Test) -> Iterator[DcgmFailure]:
    """What did not pass, by GPU; the summary where it fails and no GPU does."""
    failed = [result for result in test.results or [] if result is not None and result.failed]
    if not failed and test.test_summary is not None and test.test_summary.failed:
        failed = [msgspec.structs.replace(test.test_summary, entity_id=None)]
    for result in failed:
        for text, severity, error_id in list(_reasons(result.warnings)) or [("", 0, 0)]:
            yield DcgmFailure(test.name, (result.where + text)[:MAX_TEXT], severity, error_id)


def _reasons(warnings: Any) -> Iterator[tuple[str, int, int]]:
    """Text, severity and number of each warning, in whichever of its layouts."""
    match warnings:
        case str():
            yield warnings, 0, 0
        case list():
            for each in warnings:
                yield from _reasons(each)
        case {"warnings": inner}:
            yield from _reasons(inner)
        case {"warning": str(text)}:
            yield text, _number(warnings.get("error_severity")), _number(warnings.get("error_id"))


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
