"""What processes of the release before write after the migration, during a rolling upgrade."""

from uuid import UUID, uuid4

from sqlalchemy import text

from core.db import Database
from tests.integration.admin.people import person


async def test_they_insert_tokens_and_sessions_and_end_sessions(database: Database) -> None:
    user_id = UUID((await person(database, "finance")).id)
    insert = (
        "INSERT INTO admin_tokens (id, user_id, name, hash, last4, expires_at) "
        "VALUES (:id, :user, :name, :hash, 'abcd', now() + CAST(:life AS text)::interval)"
    )
    async with database.system() as connection:
        for name, life in (("job", None), ("session", "12 hours")):
            values = {"id": uuid4(), "user": user_id, "name": name, "hash": uuid4().bytes, "life": life}
            await connection.execute(text(insert), values)
        await connection.execute(
            text("UPDATE users SET sessions_from = clock_timestamp() WHERE id = :id"), {"id": user_id}
        )
        rows = await connection.execute(
            text("SELECT name, kind, expires_at - now() FROM admin_tokens WHERE user_id = :id ORDER BY name"),
            {"id": user_id},
        )
        found = [(name, kind, life.total_seconds() / 3600) for name, kind, life in rows]
    assert found == [("job", "token", 365 * 24), ("session", "session", 12)]
