"""The line that says what a page of figures was played with."""

import subprocess
from pathlib import Path

import pytest

from cli.commands.sim.played import commit, played_line


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    run = subprocess.run(["git", *identity, *arguments], cwd=root, capture_output=True, text=True, check=True)
    return run.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "docs").mkdir()
    for name in ("code.py", "docs/page.md"):
        (tmp_path / name).write_text("one\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "First")
    return tmp_path


def test_a_checkout_is_told_by_its_commit_and_changed_code_by_a_plus(checkout: Path) -> None:
    short = git(checkout, "rev-parse", "--short", "HEAD")
    (checkout / "docs" / "page.md").write_text("figures are written here\n")
    assert commit(checkout) == short
    (checkout / "code.py").write_text("two\n")
    assert commit(checkout) == f"{short}+"


def test_an_installed_package_inside_of_a_checkout_has_no_commit(checkout: Path) -> None:
    (checkout / "site-packages").mkdir()
    assert commit(checkout / "site-packages") == ""


def test_the_line_names_date_and_version() -> None:
    assert played_line().startswith("Played 20")
    assert " with version " in played_line()
    assert played_line().endswith(".")
