"""What `make gpu` measures, on the simulated engine under the real agent; and what it does where there is no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu.__main__ import main
from bench.gpu.catalog import LARGER, SMALL, with_gpu_profiles
from bench.gpu.measure import greedy, one_user, prefix_knowledge, sleep_and_wake, sweep, write_sweep
from bench.gpu.rig import Rig, serving
from sim.pool.validation.sweeps import read_sweeps
from tests.gpu import test_engine, test_host
from tests.gpu.conftest import LIMIT_S, ROOT
from workers.catalog import load_catalog
from workers.machine import Gpus
from workers.plan import TINY, plan_vllm

KIND = "gpu-h100x1-80gb"


async def test_the_parts_measure_an_engine_under_the_agent(tmp_path: Path) -> None:
    async with serving(load_catalog(), tmp_path, engine="sim", engine_env=tmp_path) as rig:
        assert rig.loaded_s > 0
        assert await greedy(rig) == await greedy(rig) != ""
        user = await one_user(rig, sentences=32)
        assert user["decode_tokens_per_s"] > 0
        assert user["prefill_tokens"] > 32
        prefix = await prefix_knowledge(rig, tokens=256)
        assert prefix["known_tokens"] == prefix["cached_tokens"] == 256
        for level in (1, 2):
            woken = await sleep_and_wake(rig, level)
            assert (woken["engine_level"], woken["same_answer"]) == (level, True)
        assert rig.replica.restarts == 0
        await check_sweep(rig, tmp_path)


async def check_sweep(rig: Rig, tmp_path: Path) -> None:
    """The file of a sweep is one that `penstock sim fit` reads."""
    rows = await sweep(rig, shapes=((64, 4), (128, 8)), users=(1, 2), each=1)
    write_sweep(rows, tmp_path / "sweep.csv", {"sweep": "sim", "gpus": 1, "max_batched_tokens": 2048})
    [read] = read_sweeps(tmp_path / "sweep.csv").values()
    assert [(point.shape.input_tokens, point.concurrency) for point in read.points] == [
        (row["input_tokens"], row["concurrency"]) for row in rows
    ]
    assert all(point.ttft_s > 0 and point.tpot_s > 0 for point in read.points)


def test_both_profiles_are_engines_that_one_gpu_runs() -> None:
    catalog = with_gpu_profiles(load_catalog(), KIND)
    for name in (SMALL, LARGER):
        plan = plan_vllm(catalog, "host", TINY, 1, Gpus(("0",), "H100"), hub_answers=False, profile_name=name)
        [replica] = plan.replicas
        assert replica.gpu_ids == ("0",)
        line = replica.profile.command_line(replica.model, 8000, weights="/models/tiny")
        assert line[2] == "/models/tiny"
    overrides = json.loads(line[line.index("--hf-overrides") + 1])
    assert overrides["hidden_size"] == 2048


def test_without_a_gpu_one_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["--out", str(tmp_path / "gpu.json")]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("no GPU: ")
    assert not (tmp_path / "gpu.json").exists()


def test_every_test_has_a_limit_and_all_of_them_stay_below_ten_minutes() -> None:
    limits = []
    for module in (test_host, test_engine):
        shared = module.pytestmark if isinstance(module.pytestmark, list) else [module.pytestmark]
        for test in (each for name, each in vars(module).items() if name.startswith("test_")):
            marks = {
                mark.name: mark.args for mark in (*shared_marks(shared), *getattr(test, "pytestmark", []))
            }
            assert "gpu" in marks, test
            limits.append(marks["timeout"][0])
    assert len(limits) >= 3
    assert sum(limits) <= LIMIT_S


def shared_marks(marks: list[pytest.MarkDecorator]) -> list[pytest.Mark]:
    return [each.mark for each in marks]


TESTS = """
import pytest

def test_measures(record_property):
    record_property("figure", 3)

def test_fails(record_property):
    record_property("seen", 4)
    assert 1 == 2

def test_is_skipped():
    pytest.skip("no engine")
"""
RUN = """
import sys
from pathlib import Path

import pytest

from bench.gpu.__main__ import Collector

pytest.main([sys.argv[1], "-p", "no:cacheprovider"], plugins=[Collector(Path(sys.argv[2]), {"machine": "m"})])
"""


def test_the_file_has_what_tests_recorded_and_why_others_did_not_run(tmp_path: Path) -> None:
    (tmp_path / "test_of_gpus.py").write_text(TESTS)
    out = tmp_path / "data" / "gpu.json"
    command = [sys.executable, "-c", RUN, str(tmp_path / "test_of_gpus.py"), str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    found = json.loads(out.read_text())
    assert found["machine"] == "m"
    tests = found["tests"]
    assert (tests["test_measures"]["outcome"], tests["test_measures"]["figure"]) == ("passed", 3)
    assert (tests["test_fails"]["outcome"], tests["test_fails"]["seen"]) == ("failed", 4)
    assert "1 == 2" in tests["test_fails"]["why"]
    assert "no engine" in tests["test_is_skipped"]["why"]


@pytest.mark.parametrize("options", [(), ("--bare",)])
def test_a_machine_that_lists_a_gpu_runs_all_and_says_what_it_lacks(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """The driver's list is a stand-in; its library and the engine are missing."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "0, NVIDIA H100 80GB HBM3"\n')
    tool.chmod(0o755)
    out = tmp_path / "gpu.json"
    env = {
        **{name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PENSTOCK_ENGINE_ENV": str(tmp_path / "engine"),
    }
    command = [sys.executable, "-m", "bench.gpu", "--out", str(out), *options]
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    found = json.loads(out.read_text())
    assert found["gpus"] == ["H100"]
    assert found["versions"]["engine"] == "absent"
    host = found["tests"].pop("test_the_host_is_fit_to_serve")
    assert host["acceptance"]["verdict"] == "refused"
    assert len(found["tests"]) == 2
    assert all("penstock engine install" in each["why"] for each in found["tests"].values())
