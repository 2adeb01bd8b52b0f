"""Direction of dependency inside, and what comes from outside."""

import re
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parents[2]


def test_packages_depend_in_one_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == 0


@pytest.mark.parametrize("name", ["uv", "runtime", "dev"])
def test_requirements_are_pinned_and_hashed_and_name_no_index(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "index-url" not in text
    assert "://" not in text
    entries = re.split(r"\n(?=[A-Za-z0-9])", text.strip())
    for entry in (entry for entry in entries if not entry.startswith("#")):
        assert re.match(r"[A-Za-z0-9._\[\],-]+==[^ ]+", entry), entry.splitlines()[0]
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


@pytest.mark.parametrize("name", ["runtime", "dev"])
def test_every_direct_requirement_says_why_it_is_there(name: str) -> None:
    for line in (ROOT / "requirements" / f"{name}.in").read_text().splitlines():
        if line.strip() and not line.startswith(("-r", "#")):
            assert re.search(r"# .{5,}", line), f"no reason: {line}"
