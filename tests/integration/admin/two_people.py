"""Two people and what they grant, for tests of the approval limit."""

import json
from typing import Any
from uuid import UUID

import asyncpg
from typer.testing import CliRunner

from admin import accounts as admin_accounts
from admin import credits as admin_credits
from admin import decisions
from admin import users as admin_users
from admin.actor import Actor
from cli.main import app as penstock
from core.db import Database
from core.ids import uuid7
from tests.integration.billing.support import Customer
from tests.support.tenancy import ADMIN

ADA = Actor(kind="user", id=str(uuid7()), label="ada@example.com", role="finance")
BOB = Actor(kind="user", id=str(uuid7()), label="bob@example.com", role="finance")
PICO = 10**12
PASSWORD = "correct horse battery"


async def person(database: Database, email: str, role: str = "finance") -> Actor:
    user = await admin_users.create_user(database, ADMIN, email=email, password=PASSWORD, role=role)
    return Actor(kind="user", id=str(user.id), label=email, role=role)  # type: ignore[arg-type]


async def grant(
    database: Database, customer: Customer, usd: str, actor: Actor = ADA, **facts: Any
) -> admin_accounts.AccountView:
    return await admin_credits.grant_credit(
        database, actor, tenant_id=customer.tenant_id, amount_usd=usd, reason="friends", **facts
    )


async def waiting(database: Database) -> list[str]:
    return [one.kind for one in await decisions.list_approvals(database, BOB)]


async def only(database: Database) -> UUID:
    [one] = await decisions.list_approvals(database, BOB)
    return one.id


async def as_owner(pg_url: str, sql: str) -> None:
    connection = await asyncpg.connect(pg_url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


def run(*words: str) -> dict[str, Any]:
    """The JSON that a command prints."""
    result = CliRunner().invoke(penstock, [*words, "--json"])
    assert result.exit_code == 0, result.output
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed
