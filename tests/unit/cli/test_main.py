"""The command tree: everything has help with an example, and mistakes end with code 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from cli.commands.roles import load_settings, run_role
from cli.link import link
from cli.main import _COMMANDS, app
from core.errors import InvalidRequest

runner = CliRunner()


def leaves() -> list[list[str]]:
    """Every command's path."""
    root = typer.main.get_group(app)
    found = []
    context = typer.Context(root)  # type: ignore[arg-type]
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        subs = getattr(command, "commands", None)
        found += [[name, sub] for sub in subs] if subs else [[name]]
    return found


@pytest.mark.parametrize("path", leaves(), ids=" ".join)
def test_every_command_has_help_with_an_example(path: list[str]) -> None:
    result = runner.invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output


def test_the_roles_are_there() -> None:
    assert {name for name, module in _COMMANDS if module in ("up", "roles")} == {
        "up", "migrate", "api", "scheduler", "agent", "jobs", "console"
    }  # fmt: skip


@pytest.mark.parametrize("arguments", [["nope"], ["up", "--engine", "gpu"], ["up", "--replicas", "0"]])
def test_a_wrong_call_ends_with_code_2(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [["--engine", "external"], ["--engine-url", "http://x"], ["--engine", "external", "--engine-url", "x"]],
)
def test_an_external_engine_needs_its_url(arguments: list[str]) -> None:
    result = runner.invoke(app, ["up", *arguments])
    assert isinstance(result.exception, InvalidRequest)


def test_a_role_names_the_setting_it_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    with pytest.raises(InvalidRequest, match=r"DATABASE_URL is not set; `penstock api`"):
        run_role("api", load_settings())
    with pytest.raises(InvalidRequest, match="REDIS_URL"):
        run_role("jobs", load_settings({"database_url": "postgresql://x"}))
    monkeypatch.setenv("PENSTOCK_PORT", "many")
    with pytest.raises(InvalidRequest, match="PORT"):
        load_settings()


def test_the_launcher_runs_this_checkout_from_anywhere(tmp_path: Path) -> None:
    environment = tmp_path / "an environment with blanks"
    (environment / "bin").mkdir(parents=True)
    site = environment / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    launcher = link(environment)
    assert (site / "penstock.pth").read_text().strip() == str(Path(__file__).resolve().parents[3])
    # The interpreter of the tests stands in for the environment's own.
    (environment / "bin" / "python").unlink()
    (environment / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (environment / "bin" / "python").chmod(0o755)
    env = {**os.environ, "PYTHONPATH": (site / "penstock.pth").read_text().strip()}
    result = subprocess.run([launcher, "--version"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert result.stdout.startswith("penstock "), result.stderr
    assert launcher.stat().st_mode & 0o111
