"""Weights come from a stand-in for the hub by the real client, in the process that the agent starts."""

import asyncio
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from core.errors import EngineFailed
from sim.hub import COMMIT, FakeHub
from tests.integration.workers.test_replica import COMMAND, PlayedApi, metrics
from tests.support.clock import ManualClock
from tests.support.waiting import until
from tests.unit.workers.test_model_config import LLAMA
from workers.catalog import load_catalog
from workers.engine_api import EngineApi
from workers.held_engine import EngineAccess
from workers.plan import ReplicaPlan, plan_sim
from workers.prefetch import ATTEMPTS, prefetch
from workers.replica import ReplicaRunner
from workers.replica_view import EngineRefused
from workers.weights_fetch import fetch_weights
from workers.weights_manifest import Manifest, PrefetchLine, WeightsFile, write_manifest
from workers.weights_room import RESERVE_BYTES
from workers.wire import ReplicaState

WEIGHTS = "model.safetensors"
MODEL = "acme/tiny"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    fake = FakeHub(MODEL, {"config.json": b"{}", WEIGHTS: bytes(range(256)) * 400, "model.bin": b"unused"})
    with fake.serve() as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        yield fake


async def fetch(tmp_path: Path, revision: str = "main", bound_gb: float = 0.0) -> list[PrefetchLine]:
    told: list[PrefetchLine] = []
    await fetch_weights((f"{MODEL}@{revision}",), bound_gb, tmp_path / "log", told.append)
    return told


def snapshot(tmp_path: Path) -> Path:
    return tmp_path / "hub" / "models--acme--tiny" / "snapshots" / COMMIT


def manifest(tmp_path: Path) -> Path:
    return tmp_path / "hub" / "models--acme--tiny" / "penstock" / f"{COMMIT}.json"


async def test_weights_are_downloaded_once_and_a_changed_file_again(tmp_path: Path, hub: FakeHub) -> None:
    told = await fetch(tmp_path)
    assert told[0] == PrefetchLine("download", 0, len(hub.files["config.json"]) + len(hub.files[WEIGHTS]))
    assert sorted(hub.downloads) == ["config.json", WEIGHTS]
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    hub.downloads.clear()
    await fetch(tmp_path)
    await fetch(tmp_path, COMMIT)
    assert hub.downloads == []
    (snapshot(tmp_path) / WEIGHTS).resolve().write_bytes(b"\0" * len(hub.files[WEIGHTS]))
    await fetch(tmp_path)
    assert hub.downloads == [WEIGHTS]
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


@pytest.mark.parametrize("fault", ["wrong", "truncated", "500"])
async def test_a_faulty_download_is_repeated(tmp_path: Path, hub: FakeHub, fault: str) -> None:
    hub.faults[WEIGHTS] = [fault]
    await fetch(tmp_path)
    assert hub.downloads.count(WEIGHTS) == 2
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


async def test_a_download_that_stalls_goes_on_where_it_was(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    hub.files[WEIGHTS] = bytes(range(256)) * 100_000  # the client writes 10 MiB at a time
    hub.faults[WEIGHTS] = ["stalled"]
    await fetch(tmp_path)
    assert hub.ranges == [f"bytes={10 << 20}-"]
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


async def test_what_an_ended_download_has_left_is_removed(tmp_path: Path, hub: FakeHub) -> None:
    model = tmp_path / "hub" / "models--acme--tiny"
    left, held = (
        model / "blobs" / f"{hub.digest(WEIGHTS)}.0a.incomplete",
        model / "blobs" / "f0.0b.incomplete",
    )
    left.parent.mkdir(parents=True)
    for part in (left, held):
        part.write_bytes(b"part")
    lock = tmp_path / "hub" / ".locks" / model.name / "f0.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        await fetch(tmp_path)
    assert (left.exists(), held.exists()) == (False, True)
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


async def test_the_token_goes_to_the_hub_and_not_to_its_storage(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.stores = True
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    await fetch(tmp_path)
    assert hub.tokens == {"hub": {"Bearer hf_secret"}, "storage": {""}}
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def test_nothing_is_downloaded_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing, downloads = 200_000_000, []

    def download(repo: str, *_: object) -> str:
        downloads.append(repo)
        return "not now"

    def fetch_with(free: int) -> str:
        monkeypatch.setattr("workers.weights_room.shutil.disk_usage", lambda _: SimpleNamespace(free=free))
        with pytest.raises(EngineFailed) as raised:
            prefetch(MODEL, "main", tmp_path / "hub", lambda _: None, pause=lambda _: None)
        assert not isinstance(raised.value, EngineRefused), "another try may succeed"
        return raised.value.message

    files = [WeightsFile(WEIGHTS, missing, "0" * 64)]
    monkeypatch.setattr("workers.prefetch._listed", lambda *_: (COMMIT, files, False))
    monkeypatch.setattr("workers.prefetch._download", download)
    room = RESERVE_BYTES + missing
    assert fetch_with(room - 1) == (
        f"{tmp_path}/hub has 1.3 GB free, and acme/tiny needs 0.2 GB more and 1.1 GB in reserve; "
        "free space or set PENSTOCK_WEIGHTS_CACHE_GB"
    )
    assert downloads == []
    assert "could not be downloaded: not now" in fetch_with(room)
    assert downloads == [MODEL] * ATTEMPTS


async def test_a_hub_that_serves_wrong_content_is_given_up(tmp_path: Path, hub: FakeHub) -> None:
    hub.faults[WEIGHTS] = ["wrong"] * 3
    with pytest.raises(
        EngineRefused, match=rf"{WEIGHTS} of acme/tiny at {COMMIT[:12]} with wrong content 3 times"
    ):
        await fetch(tmp_path)
    with pytest.raises(EngineRefused, match="acme/tiny has no revision 'v9' on the hub"):
        await fetch(tmp_path, "v9")


async def test_without_a_hub_the_cache_serves(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        EngineFailed, match="acme/tiny at main is not in the cache and the hub does not answer"
    ):
        await fetch(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    await fetch(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    manifest(tmp_path).unlink()  # as an image was built
    await fetch(tmp_path)
    (snapshot(tmp_path) / WEIGHTS).resolve().write_bytes(b"\0")
    with pytest.raises(
        EngineFailed, match=rf"{WEIGHTS} of acme/tiny at {COMMIT[:12]} is damaged in the cache"
    ):
        await fetch(tmp_path)
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == b"\0", (
        "nothing is removed that cannot be fetched again"
    )


async def test_a_cache_that_was_copied_without_links_serves_without_a_hub(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fetch(tmp_path)
    for path in snapshot(tmp_path).iterdir():
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    shutil.rmtree(tmp_path / "hub" / "models--acme--tiny" / "blobs")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    manifest(tmp_path).unlink()
    await fetch(tmp_path)
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    assert not manifest(tmp_path).exists(), "nothing states their checksums"


async def test_a_model_that_the_hub_gives_no_longer_serves_from_the_cache(
    tmp_path: Path, hub: FakeHub
) -> None:
    await fetch(tmp_path)
    manifest(tmp_path).unlink()
    hub.repo = "acme/renamed"
    await fetch(tmp_path)
    shutil.rmtree(tmp_path / "hub")
    with pytest.raises(EngineRefused, match="the hub has no model acme/tiny"):
        await fetch(tmp_path)


@pytest.mark.parametrize("path", ["../../../../victim.txt", "a/../../victim.txt", "{absolute}"])
async def test_a_hub_cannot_name_files_outside_of_the_model(tmp_path: Path, hub: FakeHub, path: str) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    hub.files[path.format(absolute=victim)] = b"x"
    with pytest.raises(EngineRefused, match="which is no file of a model"):
        await fetch(tmp_path)
    assert victim.read_text() == "mine"


async def test_names_of_files_are_no_patterns(tmp_path: Path, hub: FakeHub) -> None:
    hub.files["plot[1].json"] = b"{}"
    await fetch(tmp_path)
    assert (snapshot(tmp_path) / "plot[1].json").read_bytes() == b"{}"


async def test_a_hub_that_does_not_answer_ends_the_prefetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.weights_fetch.STALLED_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        with pytest.raises(EngineFailed, match="the prefetch made no progress for"):
            await fetch(tmp_path)


async def test_weights_in_another_format_serve_without_a_hub(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = {"weight_map": {"a": "pytorch_model-1-of-2.bin", "b": "pytorch_model-2-of-2.bin"}}
    hub.files = {
        "pytorch_model.bin.index.json": json.dumps(index).encode(),
        **{path: path.encode() for path in index["weight_map"].values()},
    }
    await fetch(tmp_path)
    assert sorted(hub.downloads) == sorted(hub.files)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    manifest(tmp_path).unlink()
    await fetch(tmp_path)
    manifest(tmp_path).unlink()
    for missing in ("pytorch_model-2-of-2.bin", "pytorch_model.bin.index.json"):
        (snapshot(tmp_path) / missing).unlink()
        with pytest.raises(EngineFailed, match="not in the cache and the hub does not answer"):
            await fetch(tmp_path)


async def test_weights_of_an_image_that_is_read_only_serve(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fetch(tmp_path)
    hub.downloads.clear()
    with monkeypatch.context() as patch:
        patch.setattr("workers.prefetch.os.access", lambda path, mode: False)
        manifest(tmp_path).unlink()
        prefetch(MODEL, "main", tmp_path / "hub", lambda _: None)
        (snapshot(tmp_path) / WEIGHTS).unlink()
        with pytest.raises(
            EngineRefused, match=r"acme/tiny at main is not whole in .*, which the agent may not write"
        ):
            prefetch(MODEL, "main", tmp_path / "hub", lambda _: None)
    assert hub.downloads == []


async def test_times_of_files_in_layers_of_images_are_whole_seconds(tmp_path: Path, hub: FakeHub) -> None:
    await fetch(tmp_path)
    hub.downloads.clear()
    whole = snapshot(tmp_path) / WEIGHTS
    for path in (whole, snapshot(tmp_path) / "config.json"):
        second = int(path.stat().st_mtime)
        os.utime(path, (second, second))
    known = manifest(tmp_path).read_bytes()
    await fetch(tmp_path)
    assert (hub.downloads, manifest(tmp_path).read_bytes()) == ([], known)


async def test_unused_models_are_removed_beyond_the_bound(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fetch(tmp_path)
    with FakeHub("acme/next", {WEIGHTS: b"12345678"}).serve() as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        await fetch_weights(("acme/next@main",), 1e-6, tmp_path / "log", lambda _: None)
    assert not snapshot(tmp_path).exists()
    assert (
        tmp_path / "hub" / "models--acme--next" / "snapshots" / COMMIT / WEIGHTS
    ).read_bytes() == b"12345678"


async def evict(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *kept: str) -> None:
    """Have another model in a cache that has room for nothing else."""
    with FakeHub("acme/next", {WEIGHTS: b"12345678"}).serve() as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        await fetch_weights(("acme/next@main",), 1e-6, tmp_path / "log", lambda _: None, kept)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)


async def test_a_model_that_another_process_prefetches_or_a_replica_uses_stays(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fetch(tmp_path)
    with (tmp_path / "hub" / ".locks" / "penstock-models--acme--tiny.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        await evict(hub, tmp_path, monkeypatch)
    assert (snapshot(tmp_path) / WEIGHTS).exists()
    shutil.rmtree(tmp_path / "hub" / "models--acme--next")
    await evict(hub, tmp_path, monkeypatch, f"{MODEL}@main")
    assert (snapshot(tmp_path) / WEIGHTS).exists()


async def test_an_old_revision_of_the_same_model_is_removed(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = "0" * 40
    await fetch(tmp_path)
    model = snapshot(tmp_path).parents[1]
    snapshot(tmp_path).rename(model / "snapshots" / old)
    (model / "refs" / "main").unlink()
    found = msgspec.json.decode(manifest(tmp_path).read_bytes(), type=Manifest)
    write_manifest(model, MODEL, old, [each.file for each in found.files])
    manifest(tmp_path).unlink()
    hub.files[WEIGHTS] = b"12345678"
    await fetch(tmp_path, bound_gb=1e-6)
    assert [each.name for each in (model / "snapshots").iterdir()] == [COMMIT]
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == b"12345678"


async def test_an_error_of_the_fast_transport_is_tried_again(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def download(*_: object, **__: object) -> None:
        tries.append(1)
        raise RuntimeError("CAS error")  # as hf_xet has for all its failures

    monkeypatch.setattr("workers.prefetch.snapshot_download", download)
    monkeypatch.setattr(
        "workers.prefetch._listed", lambda *_: (COMMIT, [WeightsFile(WEIGHTS, 1, "0" * 64)], False)
    )
    (tmp_path / "hub").mkdir()
    with pytest.raises(EngineFailed, match="could not be downloaded: RuntimeError: CAS error"):
        prefetch(MODEL, "main", tmp_path / "hub", lambda _: None, pause=lambda _: None)
    assert len(tries) == ATTEMPTS


async def test_weights_in_a_store_that_models_share_serve_without_a_hub(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fetch(tmp_path)
    blob = (snapshot(tmp_path) / WEIGHTS).resolve()
    store = tmp_path / "hub" / "blobs" / "xethash"
    store.parent.mkdir()
    blob.rename(store)
    blob.symlink_to(store)
    manifest(tmp_path).unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    await fetch(tmp_path)
    assert manifest(tmp_path).exists(), "the link has the checksum's name"


async def test_another_format_of_the_weights_is_fetched_when_the_engine_asks_for_it(
    tmp_path: Path, hub: FakeHub
) -> None:
    hub.files["model.pt"] = b"12345678"
    await fetch(tmp_path)
    assert not (snapshot(tmp_path) / "model.pt").exists()
    await fetch_weights((f"{MODEL}@main",), 0.0, tmp_path / "log", lambda _: None, load_format="pt")
    assert (snapshot(tmp_path) / "model.pt").read_bytes() == b"12345678"


async def test_two_replicas_prefetch_once_and_load(tmp_path: Path, hub: FakeHub) -> None:
    runners, seen = [], []
    for number, plan in enumerate(plan_sim(load_catalog(), "h", "", 2).replicas):

        def access(plan: ReplicaPlan, url: str | None, number: int = number) -> EngineAccess:
            api = cast(EngineApi, PlayedApi(lambda: metrics(0)))
            return EngineAccess(url or f"http://engine:{number}", COMMAND, api)

        def note() -> None:
            seen.extend((each.status().phase, each.pid != 0) for each in runners)

        runners.append(
            ReplicaRunner(
                plan,
                access=access,
                log_file=tmp_path / f"log-{number}",
                clock=ManualClock(),
                saved=None,
                save=note,
                fetch=lambda tell: fetch_weights((f"{MODEL}@main",), 0.0, tmp_path / "log", tell),
            )
        )
    tasks = [asyncio.create_task(runner.run()) for runner in runners]
    try:
        await until(lambda: all(each.status().phase == "prefetching" for each in runners))
        assert [(each.state, each.pid) for each in runners] == [(ReplicaState.LOADING, 0)] * 2
        await until(lambda: all(each.state is ReplicaState.READY for each in runners))
        assert sorted(hub.downloads) == ["config.json", WEIGHTS]
        assert all(each.times.prefetch.count == each.times.load.count == 1 for each in runners)
        assert ("prefetching", True) not in seen
        assert all(each.status().weights_total_bytes == 0 for each in runners), (
            "of a prefetch in progress only"
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(runner.shut_down(0.0) for runner in runners))


async def test_an_engine_without_weights_to_fetch_starts_at_once(tmp_path: Path) -> None:
    (plan,) = plan_sim(load_catalog(), "h", "", 1).replicas
    api = cast(EngineApi, PlayedApi(lambda: metrics(0)))
    runner = ReplicaRunner(
        plan, access=lambda plan, url: EngineAccess("http://e", COMMAND, api),
        log_file=tmp_path / "log", clock=ManualClock(), saved=None, save=lambda: None, fetch=lambda _: None,
    )  # fmt: skip
    task = asyncio.create_task(runner.run())
    try:
        await until(lambda: runner.state is ReplicaState.READY)
        assert (runner.times.prefetch.count, runner.times.load.count) == (0, 1)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.shut_down(0.0)


async def test_a_stop_ends_the_prefetch_and_a_start_begins_it_again(tmp_path: Path) -> None:
    begun, ended = 0, 0

    async def never(tell: Callable[[PrefetchLine], None]) -> None:
        nonlocal begun, ended
        begun += 1
        tell(PrefetchLine("download", 3_000_000_000, 4_000_000_000))
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    (plan,) = plan_sim(load_catalog(), "h", "", 1).replicas
    api = cast(EngineApi, PlayedApi(lambda: metrics(0)))
    runner = ReplicaRunner(
        plan, access=lambda plan, url: EngineAccess("http://e", COMMAND, api),
        log_file=tmp_path / "log", clock=ManualClock(), saved=None, save=lambda: None, fetch=never,
    )  # fmt: skip
    task = asyncio.create_task(runner.run())
    try:
        await until(lambda: begun == 1)
        status = runner.status()
        assert (status.phase, status.detail) == (
            "prefetching",
            "prefetching the weights: 3.0 of 4.0 GB (75 %)",
        )
        assert (status.weights_done_bytes, status.weights_total_bytes) == (3_000_000_000, 4_000_000_000)
        await runner.command("stop", 0.0)
        await until(lambda: ended == 1)
        assert (runner.status().phase, runner.status().weights_total_bytes) == ("stopped", 0)
        await runner.command("resume", 0.0)
        await until(lambda: begun == 2)
        assert runner.status().phase == "prefetching"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_configuration_is_read_where_the_client_of_the_hub_can_keep_nothing(tmp_path: Path) -> None:
    """As in the containers of the API and the console: their root cannot be written to."""
    script = (
        "import sys; from workers.model_config import fetch_config; print(fetch_config(sys.argv[1], None))"
    )
    with FakeHub("acme/river", {"config.json": json.dumps(LLAMA).encode()}).serve() as url:
        done = subprocess.run(
            [sys.executable, "-c", script, "acme/river"],
            env={
                "HF_ENDPOINT": url,
                "HF_HOME": "/proc/hub",
                "TMPDIR": str(tmp_path),
                "PATH": os.environ["PATH"],
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.stdout.strip() == str(LLAMA), done.stderr
    assert list(tmp_path.iterdir()) == [], "something is left that would grow"
