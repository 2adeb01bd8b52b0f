"""Signed statements and receipts, their public keys, and SLA credits."""

import secrets
from datetime import date
from typing import Any
from uuid import UUID

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import read, write_system
from billing.statements import signing, sla_credits
from billing.statements.issue import Statement, StatementView
from billing.statements.issue import get_statement as issue_statement
from billing.statements.issue import list_statements as kept_statements
from billing.statements.receipts import TYPE as RECEIPT
from billing.statements.receipts import generation_body, receipt_body
from billing.statements.signing import KEY_FILE, PublicKey, Signer
from billing.statements.sla_credits import SlaResult
from core.db import Database
from core.errors import Conflict
from core.settings import Settings
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ADMIN, PLATFORM_ROLES, READERS


async def list_statements(database: Database, actor: Actor, *, tenant_id: UUID) -> list[StatementView]:
    """The final statements of an organisation, the newest first. Tenant roles see their own."""
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        return await kept_statements(connection, tenant_id)


async def get_statement(
    database: Database, actor: Actor, *, settings: Settings, tenant_id: UUID, month: date, again: bool = False
) -> Statement:
    """The signed statement of a month (its first day) as JSON and PDF: a draft while the month is open.

    `again` (platform roles) issues a new revision of a closed month when what it says has changed. Raises NotFound,
    and Conflict when usage and ledger differ.
    """
    require(actor, *(PLATFORM_ROLES if again else READERS), tenant_id=tenant_id)
    signer = signing.load_signer(settings)
    made = await issue_statement(database, signer, tenant_id, month, by=actor.label, new_revision=again)
    if again:
        async with write_system(database) as connection:
            await record(
                connection,
                actor,
                "statement.issue",
                tenant_id=tenant_id,
                object_kind="statement",
                object_id=made.month,
                after={"revision": made.revision, "final": made.final},
            )
    return made


async def signed_receipt(
    database: Database,
    *,
    settings: Settings,
    tenant_id: UUID,
    request_id: UUID,
    project_id: UUID | None = None,
) -> bytes:
    """The signed receipt of an organisation's own request; with `project_id`, of a request of this project.

    The caller has authenticated the organisation, and the project where a key asks.

    Raises NotFound for a request of another organisation.
    """
    signer = signing.load_signer(settings)
    async with database.read() as connection:
        body = await receipt_body(connection, tenant_id, request_id, project_id=project_id)
    async with database.system() as connection:
        await signing.register_key(connection, signer)
    return signing.document(body, signer.sign(RECEIPT, body))


async def generation(
    database: Database, *, tenant_id: UUID, request_id: UUID, project_id: UUID
) -> dict[str, Any]:
    """A settled request of a project: tokens by class, exact cost, outcome and times. Raises NotFound.

    The caller has authenticated the project's key.
    """
    async with database.read() as connection:
        return await generation_body(connection, tenant_id, request_id, project_id=project_id)


async def get_receipt(
    database: Database, actor: Actor, *, settings: Settings, tenant_id: UUID, request_id: UUID
) -> bytes:
    """A signed receipt: platform roles of any organisation, tenant roles of their own. Raises NotFound."""
    require(actor, *READERS, tenant_id=tenant_id)
    return await signed_receipt(database, settings=settings, tenant_id=tenant_id, request_id=request_id)


async def public_keys(database: Database) -> list[PublicKey]:
    """The public keys of all signing keys, retired ones included."""
    async with database.read() as connection:
        return await signing.list_keys(connection)


async def rotate_key(database: Database, actor: Actor, *, settings: Settings, reason: str) -> list[PublicKey]:
    """Make a new signing key in the data directory and retire the one before; what that has signed still verifies.

    Raises Conflict when the key comes from the settings: then change PENSTOCK_SIGNING_KEY, and `retire_key` the old.
    """
    require(actor, PLATFORM_ADMIN)
    reason = clean_reason(reason)
    if settings.signing_key.get_secret_value():
        raise Conflict(
            "the key comes from PENSTOCK_SIGNING_KEY: set a new one there, then retire the old key"
        )
    before = signing.load_signer(settings)
    seed = secrets.token_bytes(32)
    after = Signer(seed)
    async with write_system(database) as connection:
        await signing.register_key(connection, after)
        await signing.retire_key(connection, before.key_id)
        await record(
            connection,
            actor,
            "signing_key.rotate",
            tenant_id=None,
            object_kind="signing_key",
            object_id=after.key_id,
            reason=reason,
            before={"key_id": before.key_id},
            after={"key_id": after.key_id},
        )
        signing.write_key(settings.data_dir / KEY_FILE, seed, replace=True)
    return await public_keys(database)


async def retire_key(database: Database, actor: Actor, *, key_id: str, reason: str) -> list[PublicKey]:
    """Retire a signing key; its signatures still verify. No effect on an unknown or retired key."""
    require(actor, PLATFORM_ADMIN)
    reason = clean_reason(reason)
    async with write_system(database) as connection:
        await signing.retire_key(connection, key_id)
        await record(
            connection,
            actor,
            "signing_key.retire",
            tenant_id=None,
            object_kind="signing_key",
            object_id=key_id[:64],
            reason=reason,
        )
    return await public_keys(database)


async def run_sla(database: Database, actor: Actor, *, month: date, dry_run: bool = True) -> list[SlaResult]:
    """Measure every contract's service level for a month that is over, and credit what was missed unless `dry_run`.

    Once per contract and month; a second run credits nothing more. Raises Conflict when the month can still change, and
    when contracts failed, after all the others.
    """
    require(actor, *PLATFORM_ROLES)
    if dry_run:
        return await sla_credits.measure_month(database, month)
    run = await sla_credits.credit_month(database, month)
    async with write_system(database) as connection:
        await record(
            connection,
            actor,
            "sla.run",
            tenant_id=None,
            object_kind="month",
            object_id=f"{month:%Y-%m}",
            after={
                "credited": sum(result.booked for result in run.results),
                "failed": [str(contract) for contract in run.failed],
            },
        )
    if run.error is not None:
        raise Conflict(
            f"{len(run.failed)} contracts could not be measured, which the log explains; the others are done. Run it "
            "again for " + ", ".join(map(str, run.failed[:10]))
        ) from run.error
    return run.results
