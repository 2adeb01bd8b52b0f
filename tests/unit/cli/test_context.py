"""What the administrative commands share."""

import json
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
import typer

from cli import context
from core.errors import NotFound, Unavailable


class Row(msgspec.Struct):
    id: UUID
    name: str
    cost_usd: str
    tags: list[str]


ROW = Row(UUID(int=1), "a [bold]name[/]", "0.10", ["x", "y"])


def test_json_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    context.emit([ROW], as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"id": str(UUID(int=1)), "name": "a [bold]name[/]", "cost_usd": "0.10", "tags": ["x", "y"]}
    ]


def test_a_table_shows_values_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    context.emit([ROW], as_json=False)
    out = capsys.readouterr().out
    assert "a [bold]name[/]" in out
    assert str(UUID(int=1)) in out
    assert "x, y" in out
    context.emit(ROW, as_json=False)
    assert "0.10" in capsys.readouterr().out
    context.emit([], as_json=False)
    assert "nothing found" in capsys.readouterr().out


def test_a_domain_error_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        raise NotFound("there is no such thing")

    with pytest.raises(typer.Exit) as caught:
        context.run(fail)
    assert caught.value.exit_code == 2
    assert capsys.readouterr().err == "penstock: there is no such thing\n"


def test_without_a_running_platform_the_command_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_DATA_DIR", raising=False)
    with pytest.raises(Unavailable, match="start `penstock up`, or set DATABASE_URL"):
        context.runtime(tmp_path)
    (tmp_path / "runtime.json").write_text("{")
    with pytest.raises(Unavailable, match="cannot be read"):
        context.runtime(tmp_path)
    (tmp_path / "runtime.json").write_text('{"key_pepper": "from-file"}')
    assert context.pepper(tmp_path) == b"from-file"
    monkeypatch.setenv("PENSTOCK_KEY_PEPPER", "from-environment")
    assert context.pepper(tmp_path) == b"from-environment"


def test_the_actor_is_the_shell_user() -> None:
    actor = context.shell_actor()
    assert (actor.kind, actor.role, actor.tenant_id) == ("cli", "platform_admin", None)
    assert actor.label


def test_the_environment_makes_nobody_another_person(monkeypatch: pytest.MonkeyPatch) -> None:
    before = context.shell_actor()
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER"):
        monkeypatch.setenv(name, "somebody-else")
    assert context.shell_actor() == before


def test_a_user_id_without_a_name_is_a_person_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context.os, "getuid", lambda: 987654321)
    assert context.shell_actor().label == "uid-987654321"
