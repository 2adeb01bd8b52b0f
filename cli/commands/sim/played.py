"""When, and with which version of the code, a page of figures was played."""

import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def played_line() -> str:
    """Return the line that a page of figures begins with: the date, the version and, in a checkout, the commit."""
    at = commit(ROOT)
    return f"Played {datetime.now(UTC):%Y-%m-%d} with version {version('penstock')}{at and f', commit {at}'}."


def commit(root: Path) -> str:
    """Return the short commit of a checkout, with + where its code differs from it; empty for what is no checkout."""
    if not (root / ".git").exists():  # an installed package may lie inside a checkout of something else
        return ""
    found = _git(root, "rev-parse", "--short", "HEAD")
    return (
        f"{found}+" if found and _git(root, "status", "--porcelain", "-uno", "--", ".", ":!docs") else found
    )


def _git(root: Path, *arguments: str) -> str:
    try:
        run = subprocess.run(  # noqa: S603 - no part of the command is input
            ["git", *arguments],  # noqa: S607 - whichever is installed
            cwd=root, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return ""
    return run.stdout.strip()
