"""The real vLLM on a GPU, started, warmed up, put to sleep and woken by the agent."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.gpu.catalog import LARGER, SMALL, with_gpu_profiles
from bench.gpu.measure import one_user, prefix_knowledge, sleep_and_wake, sweep, write_sweep
from bench.gpu.rig import Rig, serving
from workers.catalog import Catalog, load_catalog
from workers.machine import Gpus
from workers.plan import host_kind_of

pytestmark = pytest.mark.gpu
Record = Callable[[str, object], None]


@pytest.fixture
def catalog(gpus: Gpus) -> Catalog:
    packaged = load_catalog()
    return with_gpu_profiles(packaged, host_kind_of(packaged, gpus) or next(iter(packaged.hosts)))


def record_start(record: Record, rig: Rig) -> None:
    record("loaded_s", rig.loaded_s)
    record("warmed_s", rig.warmed_s)


@pytest.mark.timeout(220)
async def test_the_agent_runs_the_engine_and_wakes_it_as_it_was(
    catalog: Catalog, engine_env: Path, tmp_path: Path, record_property: Record
) -> None:
    async with serving(catalog, tmp_path, engine="vllm", engine_env=engine_env, profile=SMALL) as rig:
        record_start(record_property, rig)
        record_property("one_user", await one_user(rig, sentences=512))
        prefix = await prefix_knowledge(rig)
        record_property("prefix", prefix)
        sleeps = [await sleep_and_wake(rig, level) for level in (1, 2)]
        for name, woken in zip(("sleep", "sleep_2"), sleeps, strict=True):
            record_property(name, woken)
        restarts = rig.replica.restarts
    assert prefix["known_tokens"] == prefix["cached_tokens"] > 0
    assert [(woken["engine_level"], woken["same_answer"]) for woken in sleeps] == [(1, True), (2, True)]
    assert restarts == 0, "the engine woke by itself"


@pytest.mark.timeout(180)
async def test_a_model_that_memory_bandwidth_bounds_is_measured(
    catalog: Catalog, engine_env: Path, tmp_path: Path, gpus: Gpus, record_property: Record
) -> None:
    async with serving(catalog, tmp_path, engine="vllm", engine_env=engine_env, profile=LARGER) as rig:
        record_start(record_property, rig)
        record_property("one_user", await one_user(rig, sentences=256))
        rows = await sweep(rig)
        record_property("sweep", rows)
    if path := os.environ.get("PENSTOCK_GPU_SWEEP"):
        facts = {"sweep": LARGER, "model": "Qwen3, 1.2 billion random weights", "engine": "vllm", "gpus": 1}
        write_sweep(rows, Path(path), {**facts, "gpu_type": gpus.kind, "max_batched_tokens": 8192})
    assert all(row["tpot_mean_s"] > 0 for row in rows)
