"""`penstock models` and `penstock engine` as an operator runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app

CHECKOUT = Path(__file__).resolve().parents[3]


def penstock(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=CHECKOUT, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_models(pg_url: str) -> None:
    added = penstock("models", "add", "penstock/tiny", "--json", DATABASE_URL=pg_url)
    assert added.returncode == 0, added.stderr
    assert json.loads(added.stdout)["status"] == "active"
    assert penstock("models", "alias", "tiny", "penstock/tiny", DATABASE_URL=pg_url).returncode == 0
    listed = penstock("models", "list", "--json", DATABASE_URL=pg_url)
    assert [(row["name"], row["alias_of"]) for row in json.loads(listed.stdout)] == [
        ("penstock/tiny", None),
        ("tiny", "penstock/tiny"),
    ]
    wrong = penstock("models", "add", "gpt-9", DATABASE_URL=pg_url)
    assert wrong.returncode == 2
    assert len(wrong.stderr.strip().splitlines()) == 1
    assert "the catalog has no model 'gpt-9'" in wrong.stderr
    assert penstock("models", "retire", "tiny", "--note", "gone", DATABASE_URL=pg_url).returncode == 0


def test_the_end_of_a_model(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)

    def models(*words: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, ["models", *words, "--json"])
        assert result.exit_code == 0, result.stderr
        told: dict[str, Any] = json.loads(result.stdout)
        return told

    old, new = "llama-3.3-70b", "qwen3.5-397b"
    for name in (old, new):
        models("add", name)
    going = models(
        "deprecate", old, "--retire-at", "2999-01-01", "--replacement", new, "--note", "The weights go"
    )
    assert (going["status"], going["retires_at"], going["replacement"], going["redirected"]) == (
        "deprecated", "2999-01-01T00:00:00Z", new, False,
    )  # fmt: skip
    refused = CliRunner().invoke(app, ["models", "replace", old, new, "--at", "2999-02-01"])
    assert (refused.exit_code, "set one with `penstock prices set` first" in refused.stderr) == (2, True)
    price = ["prices", "set", new, "--input", "5", "--output", "20", "--reason", "it replaces the old model"]
    assert CliRunner().invoke(app, price).exit_code == 0
    assert models("replace", old, new, "--at", "2999-02-01")["redirected"]
    gone = models("replace", old, new)
    assert (gone["status"], gone["redirected"], gone["note"]) == ("retired", True, "The weights go")
    assert not models("retire", old)["redirected"]
    past = CliRunner().invoke(app, ["models", "deprecate", new, "--retire-at", "2020-01-01"])
    assert past.exit_code == 2
    assert "which is past; `penstock models retire` retires a model now" in past.stderr
    assert len(past.stderr.strip().splitlines()) == 1
    for command in ("alias", "deprecate", "retire", "replace"):
        helped = CliRunner().invoke(app, ["models", command, "--help"])
        assert f"Example: penstock models {command} " in helped.stdout


def test_engine_status_of_nothing(tmp_path: Path) -> None:
    result = penstock("engine", "status", "--json", "--engine-env", str(tmp_path / "none"))
    assert json.loads(result.stdout)["state"] == "absent"


def test_engine_install_reports_a_missing_package_in_one_sentence(tmp_path: Path) -> None:
    """Without a package index, the error names the failed step and the alternative."""
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    env = tmp_path / "engine"
    result = penstock("engine", "install", "--kind", "cpu", "--engine-env", str(env), **nowhere)
    assert result.returncode == 2
    last = result.stderr.strip().splitlines()[-1]
    assert "PyTorch 2.13.0+cpu cannot be had" in last
    assert "--torch-index" in last
    assert "--engine sim" in last
    status = json.loads(penstock("engine", "status", "--json", "--engine-env", str(env)).stdout)
    assert (status["state"], status["done"]) == ("partial", ["environment"])
