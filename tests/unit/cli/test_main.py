"""The command tree: everything has help with an example, and mistakes end with code 2."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from cli.commands.roles import load_settings, run_role
from cli.main import _COMMANDS, app
from core.errors import InvalidRequest

ROOT = Path(__file__).resolve().parents[3]
_WHERE = (
    "from importlib.metadata import entry_points as e; import sys; f = e(name='penstock')['penstock'].load(); "
    "print(sys.modules[f.__module__].__file__)"
)
runner = CliRunner()


def leaves() -> list[list[str]]:
    """Every command's path, also below groups of groups."""
    root = typer.main.get_group(app)
    context = typer.Context(root)  # type: ignore[arg-type]

    def below(command: Any, path: list[str]) -> list[list[str]]:
        subs = getattr(command, "commands", None)
        return [leaf for name in subs for leaf in below(subs[name], [*path, name])] if subs else [path]

    return [
        leaf
        for name in root.list_commands(context)
        for leaf in below(root.get_command(context, name), [name])
    ]


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


def test_the_installed_command_runs_this_checkout_from_anywhere(tmp_path: Path) -> None:
    launcher = Path(sys.executable).with_name("penstock")
    result = subprocess.run([launcher, "--version"], cwd=tmp_path, capture_output=True, text=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert result.stdout == f"penstock {project['version']}\n", result.stderr
    where = subprocess.run([sys.executable, "-c", _WHERE], cwd=tmp_path, capture_output=True, text=True)
    assert Path(where.stdout.strip()).parent == ROOT / "cli", where.stderr
