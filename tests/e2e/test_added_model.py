"""A tiny model made on the spot is added while the platform runs, with arguments that vLLM's own parser checks, and is
served by the real engine."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.added_model import ADD_S, add_and_serve
from tests.support.stack import ROOT, Stack

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A platform that serves something else, by the simulated engine."""
    stack = Stack(tmp_path_factory.mktemp("added") / "data", "--engine", "sim").start()
    yield stack
    stack.stop()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model of a few megabytes."""
    directory = tmp_path_factory.mktemp("weights") / "river"
    python = Path(os.environ.get("PENSTOCK_ENGINE_ENV") or ROOT / ".engine") / "bin" / "python"
    subprocess.run([str(python), str(ROOT / "workers" / "tiny_model.py"), str(directory)], check=True)
    return directory


def test_an_added_model_is_served_by_vllm(platform: Stack, weights: Path, tmp_path: Path) -> None:
    options = ("--arg", "dtype=float32", "--arg", "enforce-eager", "--arg", "block-size=32")
    answer = add_and_serve(
        platform, tmp_path / "host", weights, *options, "--arg", "max-num-seqs=8", engine="vllm"
    )
    assert answer["usage"]["completion_tokens"] > 0
    with pytest.raises(
        AssertionError, match="vLLM refuses the arguments: unrecognized arguments: --max-model-lenx"
    ):
        platform.command(
            *("models", "add", "acme/wrong", "--weights", str(weights), "--host-kind", "local-cpu"),
            *("--arg", "max-model-lenx=9"),
            timeout_s=ADD_S,
        )
