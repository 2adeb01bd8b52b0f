"""Scheduled exports: append-only, deterministic, revisions of open periods, folders and an S3 store."""

import asyncio
import io
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from pydantic import SecretStr
from sqlalchemy import text

from admin import exports as admin_exports
from billing.exports import schedule
from billing.exports.definitions import ExportDefinition
from billing.exports.failures import list_failures
from billing.exports.stores import FolderStore, S3Store
from billing.exports.verify import verify_exports
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied, Unavailable
from core.settings import Settings
from jobs.work import seal
from tests.integration.billing.exports.books import Busy, busy
from tests.integration.billing.reports.support import settle_some
from tests.support.tenancy import ADMIN, audit_actions, member


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path)


def store_at(address: str, settings: Settings) -> Settings:
    """Settings of a store with credentials."""
    return settings.model_copy(
        update={
            "export_s3_endpoint": address,
            "export_s3_key_id": SecretStr("key-of-the-test"),
            "export_s3_secret": SecretStr("secret-of-the-test"),
        }
    )


async def make(database: Database, month: Busy, **facts: Any) -> ExportDefinition:
    return await admin_exports.create_export(
        database,
        ADMIN,
        **{"name": "usage", "destination": "out", "starts_at": month.start, **facts},
    )


def day_of(month: Busy) -> datetime:
    """Yesterday, which is over and has usage at any hour of the present day: usage reaches 40 hours back."""
    return (month.end - timedelta(hours=25)).replace(hour=0)


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }


async def settle_more(database: Database, month: Busy) -> None:
    async with database.system() as connection:
        rows = await connection.execute(text("SELECT id, model FROM price_versions WHERE tenant_id IS NULL"))
        versions = {row.model: row.id for row in rows}
    await settle_some(database, random.Random(9), [month.customers[0]], versions, 60)


@pytest.mark.parametrize("format", ["csv", "json", "xlsx", "parquet"])
async def test_the_same_again_is_nothing_and_what_changed_is_a_revision(
    database: Database, settings: Settings, format: str
) -> None:
    month = await busy(database, requests=60)
    definition = await make(database, month, format=format)
    day = day_of(month)
    first = await schedule.run_period(database, settings, definition, day)
    assert first is not None
    assert (first.revision, first.is_new, first.final) == (1, True, False)
    root = settings.data_dir / "exports"
    written = files(root)
    folder = f"out/usage/{day:%Y-%m-%d}/r0001"
    assert set(written) == {f"{folder}/report.{format}", f"{folder}/manifest.json"}
    again = await schedule.run_period(database, settings, definition, day)
    assert again is not None
    assert (again.revision, again.is_new, again.sha256) == (1, False, first.sha256)
    assert files(root) == written
    await settle_more(database, month)
    changed = await schedule.run_period(database, settings, definition, day)
    assert changed is not None
    assert (changed.revision, changed.is_new) == (2, True)
    assert {name: content for name, content in files(root).items() if "r0001" in name} == written
    assert [one.problems for one in verify_exports(root)] == [[], []]
    manifest = json.loads(written[f"{folder}/manifest.json"])
    async with database.read() as connection:
        rows = await connection.execute(
            text("SELECT count(*) FROM ledger_transfers WHERE effective_at >= :day"), {"day": day}
        )
        assert rows.scalar_one() > 0
    assert manifest["schema"] == "penstock-export/1"
    assert manifest["rows"] > 0
    assert manifest["sums"]["cost_usd"] == first.sums["cost_usd"]


async def test_a_closed_month_is_final(database: Database, settings: Settings) -> None:
    month = await busy(database, requests=10)
    definition = await make(database, month, dataset="journal", cadence="monthly")
    earlier = (month.start.replace(day=1) - timedelta(days=40)).replace(day=1, hour=0)
    async with database.engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO billing_periods (month, status, closed_at, closed_by) "
                "VALUES (:month, 'closed', now(), 't')"
            ),
            {"month": earlier.date()},
        )
    made = await schedule.run_period(database, settings, definition, earlier)
    assert made is not None
    assert made.final


async def test_the_job_catches_up_once(database: Database, settings: Settings) -> None:
    month = await busy(database, requests=20)
    await make(database, month)
    await make(
        database,
        month,
        name="charges",
        dataset="focus_charges",
        format="csv",
        tenant_id=month.customers[0].tenant_id,
    )
    await make(database, month, name="broken", destination="s3://no-such-bucket/x")
    with pytest.raises(Unavailable, match="PENSTOCK_EXPORT_S3_KEY_ID"):
        await schedule.run_due(database, settings)
    broken = store_at("http://127.0.0.1:9", settings)
    runs = await admin_exports.list_runs(database, ADMIN)
    days = (month.last_day - month.start.replace(hour=0)).days
    assert len(runs) == 2 * days
    await admin_exports.enable_export(database, ADMIN, name="broken", enabled=False)
    assert await schedule.run_due(database, broken) == 0
    assert await admin_exports.list_runs(database, ADMIN) == runs
    text_of = b"".join(files(settings.data_dir / "exports/out/charges").values()).decode()
    assert str(month.customers[1].tenant_id) not in text_of
    assert (await audit_actions(database))[-4:] == ["export.create"] * 3 + ["export.disable"]


async def test_a_period_that_always_fails_does_not_stop_later_ones(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    month = await busy(database, requests=20)
    definition = await make(database, month)
    first = month.start.replace(hour=0)
    days = (month.last_day - first).days
    writing = schedule._write_file

    async def broken(database: Database, definition: ExportDefinition, start: datetime, *args: Any) -> Any:
        if start == first:
            raise ValueError("a row that nobody can write")
        return await writing(database, definition, start, *args)

    with monkeypatch.context() as patch:
        patch.setattr(schedule, "_write_file", broken)
        with pytest.raises(ValueError, match="nobody can write"):
            await schedule.run_due(database, settings)
        runs = await admin_exports.list_runs(database, ADMIN)
        assert len({run.period_start for run in runs}) == days - 1 > 0
        assert await schedule.run_due(database, settings) == 0, "not tried again at once"
        await _wait_is_over(database)
        with pytest.raises(ValueError, match="nobody can write"):
            await schedule.run_due(database, settings)
    async with database.read() as connection:
        (failure,) = await list_failures(connection, definition.id)
    assert (failure.period_start, failure.attempts) == (first, 2)
    assert failure.error.startswith("ValueError")
    assert failure.next_at - failure.failed_at > timedelta(minutes=9), "twice as long as at first"
    await _wait_is_over(database)
    assert await schedule.run_due(database, settings) == 1
    assert len(await admin_exports.list_runs(database, ADMIN)) == days
    async with database.read() as connection:
        assert await list_failures(connection, definition.id) == []


async def _wait_is_over(database: Database) -> None:
    async with database.system() as connection:
        await connection.execute(text("UPDATE export_failures SET next_at = failed_at"))


async def test_two_at_once_write_one_revision(database: Database, settings: Settings) -> None:
    month = await busy(database, requests=20)
    definition = await make(database, month)
    day = day_of(month)
    made = await asyncio.gather(*(schedule.run_period(database, settings, definition, day) for _ in range(4)))
    assert sum(one is not None and one.is_new for one in made) == 1
    assert len(files(settings.data_dir / "exports")) == 2


async def test_a_run_that_died_half_way_is_finished(database: Database, settings: Settings) -> None:
    """A crash after the data file or after the manifest: no file is overwritten or duplicated."""
    month = await busy(database, requests=20)
    definition = await make(database, month)
    day = day_of(month)
    root = settings.data_dir / "exports"
    await schedule.run_period(database, settings, definition, day)
    written = files(root)
    await _forget_runs(database)
    made = await schedule.run_period(database, settings, definition, day)
    assert made is not None
    assert (made.revision, files(root)) == (1, written)
    await _forget_runs(database)
    (next(root.rglob("manifest.json"))).unlink()
    made = await schedule.run_period(database, settings, definition, day)
    assert made is not None
    assert (made.revision, set(files(root))) == (1, set(written))
    await _forget_runs(database)
    (next(root.rglob("manifest.json"))).unlink()
    await settle_more(database, month)
    made = await schedule.run_period(database, settings, definition, day)
    assert made is not None
    assert made.revision == 2
    assert [one.problems for one in verify_exports(root)] == [[]]


async def _forget_runs(database: Database) -> None:
    async with database.engine.begin() as connection:
        await connection.execute(text("DELETE FROM export_runs"))


async def test_verify_finds_what_was_touched(database: Database, settings: Settings) -> None:
    month = await busy(database, requests=20)
    definition = await make(database, month, format="csv")
    await schedule.run_period(database, settings, definition, day_of(month))
    data = next((settings.data_dir / "exports").rglob("report.csv"))
    data.chmod(0o600)
    content = data.read_bytes()
    data.write_bytes(content.replace(b"USD", b"EUR", 1))
    (verdict,) = verify_exports(settings.data_dir)
    assert any("checksum" in problem for problem in verdict.problems)
    manifest = data.with_name("manifest.json")
    facts = json.loads(manifest.read_bytes())
    data.write_bytes(content)
    manifest.chmod(0o600)
    manifest.write_text(
        json.dumps({**facts, "rows": facts["rows"] + 1, "sums": {**facts["sums"], "cost_usd": "1.00"}})
    )
    (verdict,) = verify_exports(settings.data_dir)
    assert len(verdict.problems) == 2
    data.unlink()
    assert verify_exports(settings.data_dir)[0].problems == ["report.csv is missing"]


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"destination": "../out"}, InvalidRequest),
        ({"destination": "/etc"}, InvalidRequest),
        ({"destination": "a/../../b"}, InvalidRequest),
        ({"destination": "https://example.com/x"}, InvalidRequest),
        ({"destination": "s3://Bad_Bucket/x"}, InvalidRequest),
        ({"destination": "s3://bucket/../x"}, InvalidRequest),
        ({"destination": "a\x00b"}, InvalidRequest),
        ({"name": "a/b"}, InvalidRequest),
        ({"name": ".."}, InvalidRequest),
        ({"dataset": "secrets"}, InvalidRequest),
        ({"format": "exe"}, InvalidRequest),
        ({"cadence": "yearly"}, InvalidRequest),
        ({"group_by": "colour"}, InvalidRequest),
        ({"dataset": "invoices", "cadence": "daily"}, InvalidRequest),
    ],
)
async def test_nonsense_is_refused_and_changes_nothing(
    database: Database, facts: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await admin_exports.create_export(database, ADMIN, **{"name": "x", "destination": "out", **facts})
    assert await admin_exports.list_exports(database, ADMIN) == []


async def test_only_platform_people_say_where_files_go(database: Database, settings: Settings) -> None:
    month = await busy(database, requests=10)
    mine = month.customers[0].tenant_id
    with pytest.raises(PermissionDenied):
        await admin_exports.create_export(database, member(mine), name="x", destination="out", tenant_id=mine)
    with pytest.raises(InvalidRequest):
        await make(database, month, dataset="journal", tenant_id=mine)
    await make(database, month)
    with pytest.raises(Conflict):
        await make(database, month)
    with pytest.raises(NotFound):
        await admin_exports.run_export(database, ADMIN, settings, name="other", period="2026-11-01")
    with pytest.raises(InvalidRequest, match="2026-11-20"):
        await admin_exports.run_export(database, ADMIN, settings, name="usage", period="2026-11")


def test_a_link_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "exports").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "exports" / "out").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidRequest, match="leads out"):
        FolderStore(tmp_path / "exports", ("out",)).read("a")


@pytest.fixture
def s3(settings: Settings) -> Iterator[Settings]:
    """A local S3-compatible store with one bucket, and settings that point there."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    found = store_at(f"http://{host}:{port}", settings)
    try:
        client(found).create_bucket(Bucket="finance")
        yield found
    finally:
        server.stop()


def client(settings: Settings) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=settings.export_s3_endpoint,
        region_name="us-east-1",
        aws_access_key_id="k",
        aws_secret_access_key="s",
    )


async def test_an_s3_store_is_append_only_too(database: Database, s3: Settings, tmp_path: Path) -> None:
    month = await busy(database, requests=20)
    definition = await make(database, month, destination="s3://finance/penstock/usage")
    day = day_of(month)
    first = await schedule.run_period(database, s3, definition, day)
    assert first is not None
    assert first.location == f"s3://finance/penstock/usage/usage/{day:%Y-%m-%d}/r0001/report.parquet"
    again = await schedule.run_period(database, s3, definition, day)
    assert again is not None
    assert not again.is_new
    await _forget_runs(database)
    adopted = await schedule.run_period(database, s3, definition, day)
    assert adopted is not None
    assert adopted.revision == 1
    await settle_more(database, month)
    changed = await schedule.run_period(database, s3, definition, day)
    assert changed is not None
    assert changed.revision == 2
    objects = client(s3).list_objects_v2(Bucket="finance")["Contents"]
    assert len(objects) == 4
    for one in objects:
        place = tmp_path / "copy" / one["Key"]
        place.parent.mkdir(parents=True, exist_ok=True)
        client(s3).download_file("finance", one["Key"], str(place))
    assert [verdict.problems for verdict in verify_exports(tmp_path / "copy")] == [[], []]
    async with database.engine.connect() as connection:
        kept = await connection.execute(text("SELECT row_to_json(d)::text FROM export_definitions d"))
        assert "secret" not in str(kept.all())
    with pytest.raises(Unavailable, match="NoSuchBucket"):
        S3Store("other", "", s3).put_new("a", io.BytesIO(b"x"))


async def test_each_number_of_the_audit_log_is_in_one_day(database: Database, s3: Settings) -> None:
    yesterday = (datetime.now(UTC) - timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    definition = await admin_exports.create_export(
        database, ADMIN, name="audit", dataset="audit", format="json", destination="s3://finance/logs",
        starts_at=yesterday - timedelta(days=1),
    )  # fmt: skip

    async def act(at: datetime, action: str) -> None:
        async with database.system() as connection:
            await connection.execute(
                text(
                    "INSERT INTO audit_log (id, at, actor_kind, actor_id, actor_label, action, object_kind, object_id, "
                    "after) VALUES (gen_random_uuid(), :at, 'user', 'u', 'ada', :action, 'thing', 't', '{\"n\": 1}')"
                ),
                {"at": at, "action": action},
            )

    async def numbers(day: datetime, revision: int) -> dict[int, str]:
        key = f"logs/audit/{day:%Y-%m-%d}/r{revision:04d}/audit.json"
        body = client(s3).get_object(Bucket="finance", Key=key)["Body"].read()
        rows = json.loads(body)
        assert all(row["after"] == '{"n": 1}' and len(row["seal"]) == 64 for row in rows)
        return {row["seq"]: row["action"] for row in rows}

    await act(yesterday - timedelta(microseconds=1), "a.last")
    await act(yesterday, "b.first")
    await seal(database, s3)
    await act(yesterday + timedelta(hours=1), "b.not_sealed")
    assert await schedule.run_due(database, s3) == 2
    before, day = await numbers(yesterday - timedelta(days=1), 1), await numbers(yesterday, 1)
    assert (list(before.values()), list(day.values())) == (["a.last"], ["b.first"])
    await seal(database, s3)
    run = await schedule.run_period(database, s3, definition, yesterday)
    assert run is not None
    assert run.revision == 2
    whole = before | await numbers(yesterday, 2)
    async with database.read() as connection:
        today = await connection.execute(
            text(
                "SELECT c.seq, a.action FROM audit_chain c JOIN audit_log a ON a.id = c.entry_id "
                "WHERE a.at >= :today"
            ),
            {"today": yesterday + timedelta(days=1)},
        )
        later = {row.seq: row.action for row in today}
    assert whole.keys().isdisjoint(later)
    assert sorted(whole | later) == list(range(1, len(whole | later) + 1))
    assert sorted(whole.values()) == ["a.last", "b.first", "b.not_sealed"]
