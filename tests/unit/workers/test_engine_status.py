"""The reported state of the engine's environment."""

from pathlib import Path

import pytest

from core.errors import InvalidRequest
from core.settings import Settings
from tests.support.clock import ManualClock
from workers.agent import Agent
from workers.catalog import load_catalog
from workers.engine_install import status
from workers.engine_spec import EngineSpec


def test_an_engine_that_an_image_provides_counts_as_installed(tmp_path: Path) -> None:
    assert status(tmp_path).state == "absent"
    (tmp_path / "penstock-steps.json").write_text(
        '{"kind":"gpu","version":"1.2","done":{"provided":"image"}}'
    )
    assert status(tmp_path).state == "absent"  # nothing can run yet
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    found = status(tmp_path)
    assert (found.state, found.kind, found.version) == ("installed", "gpu", "1.2")


def test_an_agent_takes_a_version_whose_installation_has_ended_or_that_was_made_by_hand(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path / "data", engine_env=tmp_path / "engine")
    agent, spec = Agent(settings, load_catalog(), ManualClock()), EngineSpec(engine_version="0.33.0")
    env = tmp_path / "engine-0.33.0"
    with pytest.raises(
        InvalidRequest, match=r"has no engine 0\.33\.0: .*engine-0\.33\.0 is not there; `penstock"
    ):
        agent._check_environment(spec)
    (env / "bin").mkdir(parents=True)
    (env / "bin" / "python").touch()
    agent._check_environment(spec)
    stamps = env / "penstock-steps.json"
    stamps.write_text('{"kind":"cpu","done":{"environment":"3.11"}}')
    with pytest.raises(InvalidRequest, match="is not installed to the end"):
        agent._check_environment(spec)
    # Of an earlier release of Penstock, which pinned it.
    for done in ('{"environment":"3.11","packages":"old","check":"old"}', '{"provided":"image"}'):
        stamps.write_text(f'{{"kind":"cpu","done":{done}}}')
        agent._check_environment(spec)
