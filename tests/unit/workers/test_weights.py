"""Weights before the engine: which files, which models, what is removed."""

import hashlib
import json
import re
from pathlib import Path

import msgspec
import pytest

from core.errors import EngineFailed
from workers.catalog import load_catalog
from workers.machine import Gpus
from workers.plan import ReplicaPlan, plan_sim, plan_vllm
from workers.weights_fetch import fetch_of, hub_models
from workers.weights_manifest import (
    PrefetchLine,
    WeightsFile,
    bytes_present,
    files_on_disk,
    is_right,
    least_recently_used,
    needed,
    progress_text,
)

CATALOG = load_catalog()


def paths(*names: str, load_format: str = "auto") -> list[str]:
    return [each.path for each in needed([WeightsFile(name, 1, "") for name in names], load_format)]


def test_other_formats_are_left_out_where_there_are_safetensors() -> None:
    assert paths("a.safetensors", "pytorch_model.bin", "original/x.json", "t.json") == [
        "a.safetensors",
        "t.json",
    ]
    assert paths("pytorch_model.bin", "t.json") == ["pytorch_model.bin", "t.json"]


def test_weights_in_a_folder_do_not_replace_those_beside_the_configuration() -> None:
    files = ["pytorch_model.bin", "adapter/adapter.safetensors", "config.json"]
    assert paths(*files) == files
    dense = ["model.safetensors", "1_Dense/pytorch_model.bin"]
    assert paths(*dense, "onnx/model.json", "original/consolidated.00.pth") == dense


def test_weights_in_mistrals_format_stand_for_the_others_as_in_vllm() -> None:
    shards = ["model-1-of-2.safetensors", "model-2-of-2.safetensors", "model.safetensors.index.json"]
    files = [*shards, "consolidated.safetensors", "params.json"]
    assert (
        paths(*files) == paths(*files, load_format="mistral") == ["consolidated.safetensors", "params.json"]
    )
    assert paths(*files, load_format="hf") == [*shards, "params.json"]
    assert paths("consolidated-1-of-1.safetensors", "consolidated.safetensors.index.json") == [
        "consolidated-1-of-1.safetensors",
        "consolidated.safetensors.index.json",
    ]


def test_what_no_engine_reads_is_left_out_and_a_format_that_is_asked_for_is_not() -> None:
    unread = ["model.onnx_data", "onnx/model.onnx", "m.tflite", "m.ckpt", "assets/plot.png"]
    assert paths("model.safetensors", *unread) == ["model.safetensors"]
    assert paths("pytorch_model.bin", *unread) == ["pytorch_model.bin"]
    assert paths("model.safetensors", "model.pt", load_format="pt") == ["model.safetensors", "model.pt"]


@pytest.mark.parametrize(
    ("names", "index", "whole"),
    [
        (["consolidated-1-of-2.safetensors", "consolidated-2-of-2.safetensors"], "consolidated", True),
        (["consolidated-1-of-2.safetensors"], "consolidated", False),
        (["consolidated-1-of-2.safetensors", "consolidated-2-of-2.safetensors"], "", False),
        (["consolidated.safetensors", "model-1-of-2.safetensors"], "", True),
        (["model-1-of-2.safetensors", "pytorch_model.bin"], "", False),
        (["pytorch_model.bin", "adapter/adapter-1-of-2.safetensors"], "", True),
        (["adapter/adapter.safetensors"], "", False),
    ],
)
def test_weights_on_the_disk_are_whole_or_not(
    tmp_path: Path, names: list[str], index: str, whole: bool
) -> None:
    snapshot = tmp_path / "snapshots" / "c"
    for name in names:
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(b"1")
    if index:
        named = {str(part): f"{index}-{part}-of-2.safetensors" for part in (1, 2)}
        (snapshot / f"{index}.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    assert bool(files_on_disk(tmp_path, "c")) is whole


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": {"a": 1}}', "\xff"])
def test_a_damaged_index_is_named(tmp_path: Path, content: str) -> None:
    snapshot = tmp_path / "snapshots" / "c"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(b"1")
    index = snapshot / "model.safetensors.index.json"
    index.write_bytes(content.encode("latin-1"))
    with pytest.raises(EngineFailed, match=rf"^{re.escape(str(index))} is damaged: "):
        files_on_disk(tmp_path, "c")


@pytest.mark.parametrize(
    "digest", [hashlib.sha256(b"ab").hexdigest(), hashlib.sha1(b"blob 2\0ab").hexdigest()]
)
def test_a_file_is_right_by_size_and_either_checksum(tmp_path: Path, digest: str) -> None:
    file, path = WeightsFile("f", 2, digest), tmp_path / "f"
    assert not is_right(path, file)
    for content, expected in [(b"ab", True), (b"ac", False), (b"a", False)]:
        path.write_bytes(content)
        assert is_right(path, file) is expected


def test_bytes_that_are_not_written_yet_are_not_present(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "a").write_bytes(b"1234")
    with (tmp_path / "blobs" / "b.1f.incomplete").open("wb") as part:
        part.write(bytes(range(256)) * 256)
        part.truncate(1 << 30)  # as parts are written in any order
    found = bytes_present(tmp_path, "c", [WeightsFile("a", 4, "a"), WeightsFile("b", 1 << 30, "b")])
    assert 4 + 65_536 <= found < 1 << 20


def test_the_least_recently_used_are_removed_until_it_fits() -> None:
    snapshots = [(3.0, 10, "new"), (1.0, 10, "old"), (0.0, 50, "used"), (2.0, 10, "middle")]
    assert least_recently_used(snapshots, 15, frozenset({"used"})) == ["old", "middle"]
    assert least_recently_used(snapshots, 0, frozenset()) == []


def large() -> ReplicaPlan:
    return plan_vllm(CATALOG, "h", "llama-3.3-70b", 1, Gpus(("0", "1"), "H100"), hub_answers=True).replicas[0]


def test_models_of_an_engine_are_its_own_its_draft_and_its_tokenizer() -> None:
    plan = large()
    name = plan.profile.hub_id or plan.model.hub_id
    assert hub_models(plan) == (f"{name}@main",)
    args = {
        **plan.profile.args,
        "revision": "v2",
        "speculative-config": {"model": "acme/draft"},
        "tokenizer": name,
    }
    more = msgspec.structs.replace(plan, profile=msgspec.structs.replace(plan.profile, args=args))
    assert hub_models(more) == (f"{name}@v2", "acme/draft@main", f"{name}@main")


def test_a_directory_a_toy_and_a_simulated_engine_need_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = large()
    for elsewhere in ("/models/x", "./models/x", "s3://models/x"):
        local = msgspec.structs.replace(plan.model, hub_id=elsewhere)
        args = {"speculative-config": {"model": "ngram", "num_speculative_tokens": 3}}
        profile = msgspec.structs.replace(plan.profile, hub_id="", args=args)
        assert hub_models(msgspec.structs.replace(plan, model=local, profile=profile)) == ()
    (tmp_path / "tok").mkdir()
    monkeypatch.setattr("workers.weights_fetch.CHECKOUT", tmp_path)  # where engines start
    beside = msgspec.structs.replace(plan.profile, args={"tokenizer": "tok"})
    assert hub_models(msgspec.structs.replace(plan, profile=beside)) == hub_models(plan)
    assert hub_models(plan_sim(CATALOG, "h", "llama-3.3-70b", 1).replicas[0]) == ()
    toy = plan_vllm(CATALOG, "h", "penstock/tiny", 1, Gpus(), hub_answers=False)
    assert hub_models(toy.replicas[0]) == ()


def test_a_fetch_is_that_of_the_version_that_is_deployed(tmp_path: Path) -> None:
    toy = plan_vllm(CATALOG, "h", "penstock/tiny", 1, Gpus(), hub_answers=False).replicas[0]
    plan = toy
    fetch = fetch_of(lambda: plan, 0.0, tmp_path / "log")
    assert fetch(lambda _: None) is None
    plan = large()
    work = fetch(lambda _: None)
    assert work is not None
    work.close()


async def test_arguments_are_checked_before_anything_is_fetched(tmp_path: Path) -> None:
    checked = []

    async def check(plan: ReplicaPlan) -> None:
        checked.append(plan)
        raise EngineFailed("unrecognized arguments: --x")

    plan = large()
    work = fetch_of(lambda: plan, 0.0, tmp_path / "log", check=check)(lambda _: None)
    assert work is not None
    with pytest.raises(EngineFailed, match="--x"):
        await work
    assert checked == [plan]
    assert not (tmp_path / "log").exists()


def test_progress_in_words() -> None:
    line = PrefetchLine("download", 35_000_000_000, 70_000_000_000)
    assert progress_text(line) == "prefetching the weights: 35.0 of 70.0 GB (50 %)"
