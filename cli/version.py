"""The version, read from pyproject.toml: the project runs from its checkout and is not installed."""

import tomllib
from pathlib import Path


def version() -> str:
    """Such as "0.1.0"."""
    text = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text()
    return str(tomllib.loads(text)["project"]["version"])
