"""One platform with the real vLLM and the tiny model for all end-to-end tests of a run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stack import Stack


@pytest.fixture(scope="session")
def vllm_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """`penstock up --engine vllm --model penstock/tiny`; needs `penstock engine install` to have run."""
    data_dir: Path = tmp_path_factory.mktemp("spine") / "data"
    stack = Stack(data_dir, "--engine", "vllm", "--model", "penstock/tiny", "--api-workers", "2")
    stack.start(timeout_s=600)
    try:
        yield stack
    finally:
        status = stack.stop()
        assert status == 0, f"penstock up ended with {status}:\n{stack.log.read_text()[-3000:]}"
