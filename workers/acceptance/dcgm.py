"""Runs NVIDIA's `dcgmi diag` at level 2 and reads its JSON.

Level 2 takes under two minutes: software, PCIe, memory and bandwidth (DCGM user guide, "DCGM Diagnostics"). DCGM 4
writes "DCGM Diagnostic" with results by entity, DCGM 3 "DCGM GPU Diagnostic" with results by `gpu_ids`; both have
categories with tests with results. Text may stand before the JSON.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from workers.acceptance.commands import Run, run_tool
from workers.acceptance.readings import DcgmFailure, DcgmReading

COMMAND = ("dcgmi", "diag", "-r", "2", "-j")
TIMEOUT_S = 300.0
_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
MAX_TEXT = 300


class _Warning(msgspec.Struct):
    warning: str = ""
    error_severity: int = 0


class _Result(msgspec.Struct):
    status: str = ""
    entity_group: str = "GPU"
    entity_id: int | None = None
    gpu_ids: str = ""
    warnings: list[_Warning | str] | str | None = None

    @property
    def where(self) -> str:
        """Which GPU it is about; empty = all."""
        if self.entity_id is not None:
            return f"{self.entity_group} {self.entity_id}: "
        return f"GPU {self.gpu_ids}: " if self.gpu_ids else ""

    def reasons(self) -> Iterator[_Warning]:
        """Why it failed."""
        found = [self.warnings] if isinstance(self.warnings, str) else self.warnings or []
        for each in found:
            yield _Warning(each) if isinstance(each, str) else each


class _Test(msgspec.Struct):
    name: str = ""
    results: list[_Result] = []


class _Category(msgspec.Struct):
    tests: list[_Test | None] = []


class _Diagnostic(msgspec.Struct):
    test_categories: list[_Category] = []
    version: str = ""
    runtime_error: str = ""


async def diagnose() -> DcgmReading | None:
    """Run the diagnostic; None where DCGM is not installed. The GPUs must run nothing else."""
    ran = await run_tool(COMMAND, TIMEOUT_S)
    return None if ran is None else parse(ran)


def parse(ran: Run) -> DcgmReading:
    """What the diagnostic printed. Its exit status says nothing: it is not 0 for a mere setting, too."""
    start, end = ran.output.find("{"), ran.output.rfind("}")
    try:
        document: dict[str, Any] = msgspec.json.decode(ran.output[start : end + 1]) if start >= 0 else {}
        root = next((document[name] for name in _ROOTS if name in document), None)
        found = msgspec.convert(root, _Diagnostic)
    except msgspec.MsgspecError:
        last = ran.output.strip().splitlines()[-1:] or [f"exit status {ran.status}"]
        return DcgmReading("", (), (), error=f"it printed no result: {last[0][:MAX_TEXT]}")
    tests = [test for category in found.test_categories for test in category.tests if test is not None]
    if found.runtime_error or not tests:
        return DcgmReading(found.version, (), (), error=(found.runtime_error or "it ran no test")[:MAX_TEXT])
    failures = tuple(failure for test in tests for failure in _failures(test))
    failed = {failure.test for failure in failures}
    passed = tuple(
        test.name
        for test in tests
        if test.name not in failed and any(result.status.lower() == "pass" for result in test.results)
    )
    metadata = document.get("metadata")
    version = found.version or (str(metadata.get("version", "")) if isinstance(metadata, dict) else "")
    return DcgmReading(version, passed, failures)


def _failures(test: _Test) -> Iterator[DcgmFailure]:
    for result in test.results:
        if result.status.lower() not in ("fail", "warn"):
            continue
        for each in list(result.reasons()) or [_Warning()]:
            yield DcgmFailure(test.name, (result.where + each.warning)[:MAX_TEXT], each.error_severity)
