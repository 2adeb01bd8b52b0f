"""The scripts of `make compat` for the official clients that the test environment has."""

import sys
from pathlib import Path

import pytest

from tests.compat.play import environment, run_script
from tests.compat.target import target_of
from tests.compat.tools import SCRIPTS
from tests.e2e.conftest import MODEL
from tests.support.stack import Stack

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.mark.parametrize("script", ["openai_python.py", "anthropic_python.py"])
def test_the_official_clients_work_unchanged(stacks: dict[str, Stack], tmp_path: Path, script: str) -> None:
    target = target_of(stacks["mirrored"], MODEL, f"Compatibility {script}")
    env = environment(str(Path(sys.executable).parent), tmp_path, target)
    features = run_script([sys.executable, str(SCRIPTS / script)], env, limit_s=600)
    assert len(features) >= 9
    assert [each for each in features if not each.ok] == []
