"""A tiny model made on the spot is added by its name on a hub while the platform runs, with arguments that vLLM's own
parser checks. Its host prefetches the weights, and the real engine loads them without the hub and serves.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.hub import COMMIT, FakeHub
from tests.support.added_model import ADD_S, NAME, add_and_serve
from tests.support.stack import ROOT, Stack

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    """A hub with a model of a few megabytes, which this process and its children use, and an empty cache."""
    directory = tmp_path_factory.mktemp("hub")
    python = Path(os.environ.get("PENSTOCK_ENGINE_ENV") or ROOT / ".engine") / "bin" / "python"
    made = directory / "river"
    subprocess.run([str(python), str(ROOT / "workers" / "tiny_model.py"), str(made)], check=True)
    fake = FakeHub(NAME, {path.name: path.read_bytes() for path in made.iterdir()})
    with fake.serve() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", url)
        patch.setenv("HF_HUB_CACHE", str(directory / "cache"))
        patch.setenv("HF_HUB_OFFLINE", "0")
        yield fake


@pytest.fixture(scope="module")
def platform(hub: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A platform that serves something else, by the simulated engine."""
    stack = Stack(tmp_path_factory.mktemp("added") / "data", "--engine", "sim").start()
    yield stack
    stack.stop()


def test_an_added_model_is_prefetched_and_served_by_vllm(
    hub: FakeHub, platform: Stack, tmp_path: Path
) -> None:
    options = ("--arg", "dtype=float32", "--arg", "enforce-eager", "--arg", "block-size=32")
    answer = add_and_serve(platform, tmp_path / "host", *options, "--arg", "max-num-seqs=8", engine="vllm")
    assert answer["usage"]["completion_tokens"] > 0
    _check_weights(hub, tmp_path / "host")
    with pytest.raises(
        AssertionError, match="vLLM refuses the arguments: unrecognized arguments: --max-model-lenx"
    ):
        platform.command(
            *("models", "add", "acme/wrong", "--weights", NAME, "--host-kind", "local-cpu"),
            *("--arg", "max-model-lenx=9"),
            timeout_s=ADD_S,
        )


def _check_weights(hub: FakeHub, host_dir: Path) -> None:
    """The weights were downloaded once, are those of the hub, and the engine has not asked the hub for anything."""
    assert hub.downloads.count("model.safetensors") == 1
    model = Path(os.environ["HF_HUB_CACHE"]) / f"models--{NAME.replace('/', '--')}"
    snapshot = model / "snapshots" / COMMIT
    for path, content in hub.files.items():
        assert (snapshot / path).read_bytes() == content
    assert (model / "penstock" / f"{COMMIT}.json").exists()
    assert hub.clients, "the platform has asked it"
    assert not [each for each in hub.clients if "torch/" in each], (
        "the engine's environment alone has PyTorch"
    )
    (log,) = (host_dir / "logs").glob("engine-*.log")
    assert str(snapshot) in log.read_text(errors="replace")
