"""`penstock config check --connect` asks the servers; a file of settings reaches a command's process."""

import asyncio
import json
from pathlib import Path

import asyncpg
import pytest
from typer.testing import CliRunner

from cli.dry_run import planned
from cli.main import app
from cli.stack import Options
from core.errors import InvalidRequest

runner = CliRunner()


def test_servers_and_schema_are_compared(
    pg_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(f'database_url = "{pg_url}"\nredis_url = "{redis_url}"\nregion = "ams"\n')
    for name in ("DATABASE_URL", "REDIS_URL", "PENSTOCK_REGION"):
        monkeypatch.setenv(name, "")
    command = ["--config", str(file), "config", "check", "--connect", "--json"]

    def problems() -> list[str]:
        result = runner.invoke(app, command)
        found = json.loads(result.stdout)
        assert {row["setting"]: row["value"] for row in found["settings"]} == {
            "database_url": "(set)",
            "redis_url": "(set)",
            "region": "ams",
        }
        assert (result.exit_code, result.stderr) == (
            (2, f"penstock: {len(found['problems'])} of the settings cannot be used\n")
            if found["problems"]
            else (0, "")
        )
        return list(found["problems"])

    assert problems() == []
    asyncio.run(_forget_revision(pg_url))
    [older] = problems()
    assert older.startswith("DATABASE_URL: its schema is 0001_old, and this version of Penstock needs")
    file.write_text(file.read_text().replace(redis_url, "redis://127.0.0.1:1/0"))
    monkeypatch.setenv("REDIS_URL", "")
    assert [line.split(":")[0] for line in problems()] == ["DATABASE_URL", "REDIS_URL"]


async def _forget_revision(pg_url: str) -> None:
    connection = await asyncpg.connect(pg_url)
    await connection.execute("UPDATE alembic_version SET version_num = '0001_old'")
    await connection.close()


def test_what_would_be_started_is_said_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(data_dir=tmp_path / "data", engine="sim", replicas=2, port=0, console_port=0)
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:p@h/d")
    rows = {row["part"]: row["would be"] for row in planned(options)}
    assert rows["PostgreSQL"] == "that of DATABASE_URL"
    assert rows["engine"] == "sim, 2 replicas of the default model of this machine"
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("PENSTOCK_SCHEDULERS", "nowhere")
    with pytest.raises(InvalidRequest, match="PENSTOCK_SCHEDULERS"):
        planned(options)
