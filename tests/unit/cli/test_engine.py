"""`penstock engine`: which environment it means, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from core.errors import InvalidRequest
from workers.engine_spec import EngineSpec, environment

runner = CliRunner()


def test_a_version_that_is_no_part_of_a_path_is_refused(tmp_path: Path) -> None:
    for more in (["status"], ["install", "--lock", str(tmp_path / "lock.txt")]):
        result = runner.invoke(
            app, ["engine", *more, "--engine-env", str(tmp_path / "engine"), "--version", "../x"]
        )
        assert isinstance(result.exception, InvalidRequest)  # cli.main prints one line, code 2
        assert "engine_version is '../x'" in result.exception.message


def test_a_link_to_the_pinned_environment_is_not_installed_into(tmp_path: Path) -> None:
    own, lock = tmp_path / "engine", tmp_path / "lock.txt"
    own.mkdir()
    (tmp_path / "engine-0.33.0").symlink_to(own)
    lock.write_text("vllm==0.33.0\nvllm-cpu==0.33.0\n")
    given = ["--engine-env", str(own), "--version", "0.33.0", "--lock", str(lock)]
    result = runner.invoke(app, ["engine", "install", *given])
    assert isinstance(result.exception, InvalidRequest)
    assert "the environment of the pinned version" in result.exception.message
    assert list(own.iterdir()) == []


def test_it_means_the_environment_that_the_agent_looks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "engine"
    link.symlink_to(tmp_path / "disk")
    monkeypatch.setenv("PENSTOCK_ENGINE_ENV", str(link))
    result = runner.invoke(app, ["engine", "status", "--version", "0.33.0", "--json"])
    assert json.loads(result.stdout)["env"] == str(environment(link, EngineSpec(engine_version="0.33.0")))
