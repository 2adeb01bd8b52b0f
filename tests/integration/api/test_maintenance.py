"""During a maintenance requests that begin are refused with the notice, and everything else goes on."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from admin.maintenance import begin_maintenance, end_maintenance, get_maintenance
from core.errors import Conflict, InvalidRequest
from tests.support.api_process import MODEL, api_process
from tests.support.tenancy import ADMIN
from tests.support.waiting import until
from workers.maintenance import Maintenance, refusal

BODY = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}


async def test_open_answers_go_on_and_new_requests_are_refused(
    pg_url: str, redis_url: str, tmp_path: Path
) -> None:
    async with api_process(pg_url, redis_url, tmp_path, speedup=1.0) as api:
        database, headers = api.database, {"authorization": f"Bearer {api.organisation.key}"}
        stream = {**BODY, "max_tokens": 200, "stream": True}
        async with api.session.post(f"{api.url}/v1/chat/completions", json=stream, headers=headers) as answer:
            await answer.content.readline()
            await begin_maintenance(
                database,
                ADMIN,
                notice="Upgrade  of the\ndatabase",
                expected_end=datetime.now(UTC) + timedelta(hours=3),
            )

            async def refused() -> bool:
                status, found, told = await api.post(BODY)
                if status != 503:
                    return False
                assert found["error"]["code"] == "maintenance"
                assert "Upgrade of the database. Nothing was charged" in found["error"]["message"]
                assert told["retry-after"] == "3600"
                return True

            await until(refused, what="requests are refused")
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        async with api.session.get(f"{api.url}/v1/models", headers=headers) as models:
            assert models.status == 200
        async with api.session.get(f"{api.url}/readyz") as ready:
            assert ready.status == 200
        with pytest.raises(InvalidRequest, match="in the future"):
            await begin_maintenance(
                database, ADMIN, notice="x", expected_end=datetime.now(UTC) - timedelta(seconds=1)
            )
        with pytest.raises(InvalidRequest, match="1 to 300"):
            await begin_maintenance(database, ADMIN, notice=" \n")
        await end_maintenance(database, ADMIN, reason="done")
        assert await get_maintenance(database, ADMIN) is None
        with pytest.raises(Conflict):
            await end_maintenance(database, ADMIN)

        async def served() -> bool:
            return (await api.post(BODY))[0] == 200

        await until(served, what="requests are served")
        async with database.system() as connection:
            rows = await connection.execute(
                text("SELECT action, reason FROM audit_log WHERE object_kind = 'maintenance' ORDER BY at")
            )
            assert [tuple(row) for row in rows] == [("maintenance.begin", None), ("maintenance.end", "done")]


def test_a_client_is_told_when_to_ask_again() -> None:
    now = datetime(2026, 11, 29, 4, 0, tzinfo=UTC)
    for end, wanted in (
        (None, 60.0),
        (now - timedelta(hours=1), 60.0),
        (now + timedelta(seconds=90), 90.0),
        (now + timedelta(days=1), 3600.0),
    ):
        assert refusal(Maintenance("Soon.", now, end), now).retry_after_s == wanted
