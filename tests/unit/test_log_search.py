"""The search of a platform's logs finds what it is for."""

import json
from pathlib import Path

import pytest

from tests.support.log_search import ENGINE_ERROR, PROMPT, leaks

SECRETS = {"engine_key": "k" * 40, "admin_email": "admin@penstock.local", "demo_api_key": ""}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    data_dir = tmp_path / "data"
    for name in ("logs/api.log", "logs/engine-1.log.1", "postgres/log", "redis/redis.log", "postgres/base/1"):
        (data_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (data_dir / name).write_text("began for admin@penstock.local\n")
    (data_dir / "secrets.json").write_text(json.dumps(SECRETS))
    (data_dir / "agent-key").write_text("a" * 40 + "\n")
    return data_dir


def test_clean_logs(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "postgres/base/1").write_text(
        PROMPT
    )  # no log: what the database stores is a matter of its own
    assert leaks(data_dir, tmp_path / "there-is-none.log") == []


@pytest.mark.parametrize("name", ["logs/api.log", "logs/engine-1.log.1", "postgres/log", "redis/redis.log"])
@pytest.mark.parametrize(
    ("needle", "what"),
    [
        (PROMPT, "a prompt"),
        (ENGINE_ERROR, "the error text of an engine"),
        ("k" * 40, "the secret engine_key"),
        ("a" * 40, "the secret agent-key"),
    ],
)
def test_what_is_in_a_log_is_found(data_dir: Path, name: str, needle: str, what: str) -> None:
    with (data_dir / name).open("a") as log:
        log.write(f"\xff before {needle} after\n")
    assert leaks(data_dir) == [f"{data_dir / name}:2 holds {what}"]


def test_the_output_of_the_supervisor(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "up.log").write_text(f"a\nb\n{PROMPT}")
    assert leaks(data_dir, tmp_path / "up.log") == [f"{tmp_path / 'up.log'}:3 holds a prompt"]
