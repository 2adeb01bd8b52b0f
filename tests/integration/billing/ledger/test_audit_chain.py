"""The audit log is sealed in the ledger's chain: what is changed, removed or added beside it is found and named."""

from sqlalchemy import text

from admin.actor import system_actor
from admin.audit import record
from billing.ledger import audit_chain
from billing.ledger.verification import verify
from core.db import Database
from core.settings import Settings
from jobs.work import seal
from tests.integration.billing.support import make_customer

_LATER = "(SELECT entry_id FROM audit_chain WHERE seq = {seq})"
_FORGED = """
    WITH RECURSIVE made AS (
        SELECT 1::bigint AS seq, sha256(convert_to(penstock_audit_text(1, a), 'UTF8')) AS hash
        FROM audit_log a WHERE a.id = (SELECT entry_id FROM audit_chain WHERE seq = 1)
        UNION ALL
        SELECT m.seq + 1, sha256(m.hash || convert_to(penstock_audit_text(m.seq + 1, a), 'UTF8'))
        FROM made m JOIN audit_chain c ON c.seq = m.seq + 1 JOIN audit_log a ON a.id = c.entry_id)
    UPDATE audit_chain c SET hash = made.hash FROM made WHERE made.seq = c.seq
"""
"""Makes the chain of the audit log anew, as someone would who has changed a row and knows how it is sealed."""


async def _act(database: Database, action: str) -> None:
    async with database.system() as connection:
        await record(
            connection, system_actor("test"), action, tenant_id=None, object_kind="thing", object_id="1",
            after={"name": "Zoë", "amount": 12},
        )  # fmt: skip


async def _problems_after(database: Database, *harm: str) -> list[str]:
    """What the verification finds when `harm` is done, which is then undone."""
    async with database.engine.connect() as owner:
        await owner.execute(text("SET LOCAL session_replication_role = replica"))
        for statement in harm:
            await owner.execute(text(statement))
        found = (await verify(owner)).problems
        links = await owner.scalar(
            text("SELECT problem FROM penstock_verify_links(0, '', 9223372036854775807, 9223372036854775807)")
        )
        await owner.rollback()
    return found + ([str(links)] if links else [])


async def test_every_change_of_a_sealed_row_is_found(database: Database) -> None:
    await make_customer(database, "1")
    for number in range(3):
        await _act(database, f"user.act_{number}")
    assert await _problems_after(database) == []
    assert await seal(database, Settings.model_construct()) >= 4
    await _act(database, "user.act_3")
    await make_customer(database, "1", name="Later")
    await seal(database, Settings.model_construct())
    assert await seal(database, Settings.model_construct()) == 0
    assert await _problems_after(database) == []

    second = _LATER.format(seq=2)
    changed = f"UPDATE audit_log SET after = '{{\"amount\": 13}}' WHERE id = {second}"
    [problem] = await _problems_after(database, changed)
    assert problem.startswith("row 2 of the audit log (")
    assert "user.act_1) is not the one" in problem
    [problem] = await _problems_after(database, f"DELETE FROM audit_log WHERE id = {second}")
    assert problem.startswith("row 2 of the audit log")
    assert "was removed" in problem
    found = await _problems_after(database, changed, _FORGED)
    assert len(found) == 2
    assert all("rows of the audit log up to number 3 does not" in one for one in found)
    found = await _problems_after(
        database,
        f"DELETE FROM audit_log WHERE id = {_LATER.format(seq=4)}",
        "DELETE FROM audit_chain WHERE seq = 4",
    )
    assert len(found) == 2
    assert all("up to number 4 does not verify" in one for one in found)
    [problem] = await _problems_after(
        database,
        "INSERT INTO audit_log (id, actor_kind, actor_id, actor_label, action, object_kind, object_id) "
        "VALUES (gen_random_uuid(), 'user', 'x', 'x', 'x', 'x', 'x')",
    )
    assert "was added beside the seal" in problem


async def test_a_row_that_is_removed_before_its_seal_is_found(database: Database) -> None:
    await _act(database, "user.act")
    [problem] = await _problems_after(database, "DELETE FROM audit_log")
    assert "was removed before it was sealed" in problem


async def test_one_sealer_at_a_time(database: Database) -> None:
    await _act(database, "user.act")
    async with database.system() as first:
        assert await audit_chain.seal(first) == 1
        async with database.system() as second:
            assert await audit_chain.seal(second) == 0
