"""A GPU host is checked before it serves: a stand-in for the driver's library has one fault each."""

import ctypes
import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pynvml
import pytest

from core.clock import SystemClock
from core.errors import Conflict
from tests.support.nvml_stub import build, tool
from tests.support.processes import gone
from tests.support.waiting import until
from workers.acceptance import check as check_module
from workers.acceptance.check import Acceptance, check_host, expected_of
from workers.acceptance.commands import Run, run_tool
from workers.acceptance.device_probe import NO_TORCH
from workers.acceptance.readings import HostReading, SpeedReading
from workers.catalog import load_catalog

KIND = "gpu-h100x8-640gb"
RECORDED = Path(__file__).parents[2] / "data" / "acceptance"
SOUND = {
    "memory_gb_per_s": 2700.0,
    "to_device_gb_per_s": 52.0,
    "from_device_gb_per_s": 51.0,
    "launch_us": 2.1,
}


@dataclass
class Host:
    """A machine with eight H100, as the stand-ins show it."""

    tools: Path
    engine_env: Path
    library: Path
    patch: pytest.MonkeyPatch

    def has(self, **figures: int) -> None:
        """Set figures of the driver's library (tests/support/nvml/stub.c)."""
        self.patch.setenv("NVML_STUB", " ".join(f"{name}={value}" for name, value in figures.items()))

    def measures(self, **figures: float) -> None:
        """Set what GPU 0 reaches; the others are sound."""
        rows = [{"index": index, **SOUND, **(figures if index == 0 else {})} for index in range(8)]
        tool(self.engine_env / "bin", "python", json.dumps(rows))

    async def check(self, *, load: bool = True) -> Acceptance:
        """Run the checks."""
        return await check_host(
            expected_of(load_catalog(), KIND),
            engine_env=self.engine_env,
            machine_boot="boot",
            clock=SystemClock(),
            load=load,
        )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def host(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:/usr/bin:/bin")
    made = Host(tmp_path / "tools", tmp_path / "engine", library, monkeypatch)
    made.has(gpus=8)
    made.measures()
    monkeypatch.setattr("workers.acceptance.check.machine_memory_gb", lambda: 1_950.0)
    tool(made.tools, "dcgmi", (RECORDED / "dcgm-4-pass.json").read_text())
    tool(made.tools, "all_reduce_perf", (RECORDED / "all-reduce.txt").read_text())
    return made


async def test_a_host_with_less_memory_than_its_kind_is_accepted_and_says_so(host: Host) -> None:
    host.patch.setattr("workers.acceptance.check.machine_memory_gb", lambda: 950.0)
    found = await host.check()
    assert (found.verdict, [each.check for each in found.findings]) == ("accepted", ["host memory"])
    assert found.reading.ram_gb == 950.0


async def test_a_sound_host_is_accepted_without_a_finding(host: Host) -> None:
    found = await host.check()
    assert (found.verdict, found.findings) == ("accepted", ())
    assert found.reading.driver == "580.95.05"
    gpu = found.reading.gpus[0]
    assert (gpu.links_up, gpu.pcie_generation, gpu.fabric, gpu.virtualization) == (18, 5, "ready", 1)
    assert found.reading.dcgm is not None
    assert found.reading.all_reduce is not None
    assert found.reading.bandwidth is not None
    assert len(found.reading.bandwidth.devices) == 8


@pytest.mark.parametrize(
    ("fault", "verdict", "check", "said"),
    [
        ({"gpus": 7}, "refused", "gpus", "7 of 8 GPUs"),
        ({"gpus": 0}, "refused", "gpus", "no GPU"),
        ({"init": 9}, "refused", "gpus", "Driver Not Loaded"),
        ({"other_gpu": 1}, "refused", "gpus", "A100"),
        ({"clocks": 0x40}, "degraded", "clocks", "GPU 0 is slowed by a hardware thermal limit"),
        ({"clocks": 0x88}, "degraded", "clocks", "a hardware slowdown and the power brake"),
        ({"ecc": 2}, "refused", "memory", "2 uncorrected"),
        ({"rows_pending": 1}, "degraded", "memory", "reset it"),
        ({"lost": 1}, "refused", "gpus", "GPU 0 does not answer: "),
        ({"rows_failed": 1}, "refused", "memory", "could not remap"),
        ({"pcie_width": 8}, "degraded", "pcie", "8 of 16 PCIe lanes"),
        ({"pcie_generation": 3}, "degraded", "pcie", "PCIe 3 under load, and can run 5"),
        ({"replays": 50}, "degraded", "pcie", "repeated 50"),
        ({"links_down": -1}, "degraded", "nvlink", "GPU 0 reports no NVLink"),
        ({"links_down": 2}, "degraded", "nvlink", "2 of 18 NVLinks are down"),
        ({"link_errors": 9}, "degraded", "nvlink", "9 errors"),
        ({"p2p": 1}, "degraded", "p2p", "GPU 1 directly"),
        ({"fabric": 2}, "refused", "fabric", "registering"),
        ({"fabric_status": 999}, "refused", "fabric", "failed"),
        ({"mig": 1}, "refused", "mig", "partitioned"),
        ({"xid": 79}, "refused", "xid", "Xid 79"),
        ({"xid": 149}, "refused", "xid", "Xid 149"),
        ({"xid": 94}, "degraded", "xid", "Xid 94"),
        ({"xid": 31}, "accepted", "xid", "Xid 31"),
        ({"virtualization": 2}, "accepted", "virtualization", "virtual GPU"),
    ],
)
async def test_one_fault_of_a_gpu_gives_one_finding(
    host: Host, fault: dict[str, int], verdict: str, check: str, said: str
) -> None:
    host.has(**fault)
    host.patch.setattr(check_module, "FABRIC_S", 0.0)
    found = await host.check()
    findings = [each for each in found.findings if each.check not in ("all_reduce", "bandwidth")]
    assert [each.check for each in findings] == [check]
    assert said in findings[0].text
    assert found.verdict == verdict


@pytest.mark.parametrize(
    "figures",
    [
        {"clocks": 0x4},  # a power cap
        {"pcie_width": -1, "pcie_generation": -1, "replays": -1, "ecc": -1, "clocks": -1, "link_errors": -1},
        {"fabric": 0},
    ],
)
async def test_what_is_usual_or_not_supported_is_no_finding(host: Host, figures: dict[str, int]) -> None:
    host.has(**figures)
    assert (await host.check()).findings == ()


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"memory_gb_per_s": 1900.0}, "GPU 0 copies 1900 GB/s inside of its memory"),
        ({"to_device_gb_per_s": 11.0}, "GPU 0 copies 11 GB/s from or to host memory"),
        ({"from_device_gb_per_s": 12.0}, "GPU 0 copies 12 GB/s from or to host memory"),
    ],
)
async def test_a_slow_memory_or_link_degrades(host: Host, figures: dict[str, float], said: str) -> None:
    host.measures(**figures)
    found = await host.check()
    assert found.verdict == "degraded"
    assert [each.text[: len(said)] for each in found.findings] == [said]


@pytest.mark.parametrize(
    ("output", "status", "verdict", "said"),
    [
        ("dcgm-4-memory.json", 226, "refused", "memory failed: GPU 3"),
        ("dcgm-4-setting.json", 226, "accepted", "Persistence Mode"),
        ("dcgm-4-summary.json", 226, "degraded", "memory failed: CUDA initialisation"),
        ("dcgm-3-pcie.json", 226, "refused", "PCIe failed: GPU 5"),
        ("README.md", 1, "degraded", "DCGM could not run"),
    ],
)
async def test_dcgm_decides_except_for_settings(
    host: Host, output: str, status: int, verdict: str, said: str
) -> None:
    tool(host.tools, "dcgmi", (RECORDED / output).read_text(), status)
    found = await host.check()
    assert found.verdict == verdict
    assert said in found.findings[0].text


@pytest.mark.parametrize(
    ("old", "new", "verdict", "said"),
    [
        ("473.97", "310.00", "degraded", "all-reduce reaches 310 GB/s; a sound host reaches 360 or more"),
        ("473.97", "120.00", "refused", "all-reduce reaches 120 GB/s"),
        ("    22.4 ", "   155.8 ", "degraded", "an all-reduce of 8 bytes takes 156 us"),
    ],
)
async def test_a_slow_all_reduce_is_found(host: Host, old: str, new: str, verdict: str, said: str) -> None:
    table = (RECORDED / "all-reduce.txt").read_text()
    assert old in table
    tool(host.tools, "all_reduce_perf", table.replace(old, new))
    found = await host.check()
    assert found.verdict == verdict
    assert [each.text[: len(said)] for each in found.findings] == [said]


async def test_what_is_not_installed_is_noted_and_no_reason_to_refuse(host: Host) -> None:
    for path in (host.tools / "dcgmi", host.tools / "all_reduce_perf", host.engine_env / "bin" / "python"):
        path.unlink()
    host.has(pcie_generation=2)  # an idle link
    found = await host.check()
    assert found.verdict == "accepted"
    assert sorted(each.check for each in found.findings) == ["all_reduce", "bandwidth", "dcgm"]


@pytest.mark.parametrize(
    ("printed", "status", "verdict", "said"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", 1, "refused", "uncorrectable ECC"),
        (json.dumps([{"index": index, **SOUND} for index in range(7)]), 0, "refused", "PyTorch sees 7 of 8"),
        ("", NO_TORCH, "accepted", "there is no engine yet"),
    ],
)
async def test_gpus_that_pytorch_cannot_use_refuse_the_host(
    host: Host, printed: str, status: int, verdict: str, said: str
) -> None:
    tool(host.engine_env / "bin", "python", printed, status)
    found = await host.check()
    assert found.verdict == verdict
    assert said in found.findings[0].text


async def test_a_tool_without_its_libraries_is_not_installed(host: Host) -> None:
    tool(host.tools, "all_reduce_perf", "error while loading shared libraries: libnccl.so.2", 127)
    found = await host.check()
    assert (found.verdict, [each.check for each in found.findings]) == ("accepted", ["all_reduce"])


async def test_gpus_in_use_are_not_loaded(host: Host) -> None:
    host.has(process=4711)
    with pytest.raises(Conflict, match="GPU 0 is used by process 4711"):
        await host.check()
    assert (await host.check(load=False)).verdict == "accepted"


async def test_only_the_gpus_that_the_agent_may_use_are_judged(host: Host) -> None:
    host.has(ecc=2)
    devices = json.dumps([{"index": index, **SOUND} for index in range(2)])
    tool(host.engine_env / "bin", "python", devices)
    found = await check_host(
        expected_of(load_catalog(), KIND, gpus=2),
        engine_env=host.engine_env,
        machine_boot="boot",
        clock=SystemClock(),
        only=[2, 3],
    )
    assert (found.verdict, [gpu.index for gpu in found.reading.gpus]) == ("accepted", [2, 3])


async def test_a_tool_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    script = tmp_path / "stuck"
    script.write_text('#!/bin/sh\nsleep 600 & echo $! > "$0.pid"; wait\n')
    script.chmod(0o755)
    ran = await run_tool((str(script),), 1.0)
    assert ran == Run(-1, "it did not end within 1 s")
    await until(lambda: gone(int(Path(f"{script}.pid").read_text())))


async def test_a_busy_host_is_read_and_not_loaded(host: Host) -> None:
    for name in ("dcgmi", "all_reduce_perf"):
        tool(host.tools, name, "it ran", status=1)
    found = await host.check(load=False)
    assert found.verdict == "accepted"
    assert {each.severity for each in found.findings} == {"note"}


def test_a_slow_engine_makes_the_verdict_worse_and_a_fast_one_does_not() -> None:
    sound = Acceptance("accepted", datetime.now(UTC), "boot", (), HostReading())
    assert sound.with_speed(SpeedReading("h/m-0", 1.0, 0.95, validated=True)).verdict == "accepted"
    slow = sound.with_speed(SpeedReading("h/m-0", 0.5, 0.95, validated=True))
    assert (slow.verdict, [each.check for each in slow.findings]) == ("degraded", ["speed"])
    assert slow.with_speed(SpeedReading("h/m-0", 1.0, 1.0, validated=True)).verdict == "accepted"
    far = sound.with_speed(SpeedReading("h/m-0", 0.2, 0.9, validated=True))
    assert far.verdict == "degraded"  # the replica is refused, not its host
    assert "it does not serve" in far.findings[0].text
    assert sound.with_speed(SpeedReading("h/m-0", 0.2, 0.9, validated=False)).verdict == "accepted"


def test_the_command_says_the_same_and_exits_with_1_for_a_refused_host(host: Host, tmp_path: Path) -> None:
    def accept(figures: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [
                str(Path(sys.executable).parent / "penstock"),
                *("host", "accept", "--engine-env", str(host.engine_env), *arguments),
            ],
            env={
                "PATH": f"{host.tools}:/usr/bin:/bin",
                "LD_LIBRARY_PATH": str(host.library.parent),
                "NVML_STUB": figures,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    sound = accept("gpus=8", "--host-kind", KIND, "--json", "--data-dir", str(tmp_path / "data"))
    assert sound.returncode == 0, sound.stderr
    printed = json.loads(sound.stdout)
    checks = {each["check"] for each in printed["findings"]}
    assert (printed["verdict"], printed["host_kind"]) == ("accepted", KIND)
    assert checks <= {"host memory"}, "the machine of the tests may have less"
    assert json.loads((tmp_path / "data" / "acceptance.json").read_text())["verdict"] == "accepted"

    refused = accept("gpus=8 ecc=4", "--host-kind", KIND)
    assert refused.returncode == 1, refused.stderr
    assert "4 uncorrected memory errors" in " ".join(refused.stdout.split())

    unknown = accept("gpus=8", "--host-kind", "gpu-of-tomorrow")
    assert unknown.returncode == 2
    assert "there is no kind of host 'gpu-of-tomorrow'" in unknown.stderr
