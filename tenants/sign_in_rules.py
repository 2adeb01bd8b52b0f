"""Repository of what sign-ins must prove, for the people of an organisation or of the platform (tenant_id None)."""

from typing import Literal, get_args
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.proofs import Proof
from tenants.scoping import platform_wide
from tenants.tables import admin_tokens, memberships, sign_in_rules

Rule = Literal["password", "second_factor", "oidc"]
RULES: tuple[Rule, ...] = get_args(Rule)
"""From the weakest to the strongest."""
MEETS: dict[Rule, tuple[Proof, ...]] = {
    "password": ("password", "second_factor", "oidc"),
    "second_factor": ("second_factor", "oidc"),
    "oidc": ("oidc",),
}
"""Rule -> the proofs that it accepts."""

_LOCK = 0x70656E5F72756C65
"""Key of the advisory lock: "pen_rule" in ASCII."""


async def read_rule(connection: AsyncConnection, tenant_id: UUID | None) -> Rule:
    """The present rule; `password` unless another was set."""
    statement = select(sign_in_rules.c.rule).where(sign_in_rules.c.tenant_id.is_not_distinct_from(tenant_id))
    found: Rule | None = await connection.scalar(statement)
    return found or "password"


async def write_rule(connection: AsyncConnection, tenant_id: UUID | None, rule: Rule) -> None:
    """Set the rule."""
    await connection.execute(
        insert(sign_in_rules)
        .values(tenant_id=tenant_id, rule=rule)
        .on_conflict_do_update(index_elements=["tenant_id"], set_={"rule": rule})
    )


@platform_wide("a lock, no rows")
async def hold_still(connection: AsyncConnection) -> None:
    """Let no rule change until the end of the transaction, which opens a session or makes a token."""
    await connection.execute(select(func.pg_advisory_xact_lock_shared(_LOCK)))


@platform_wide("a lock, no rows")
async def wait_for_openings(connection: AsyncConnection) -> None:
    """Wait until what is being opened under the present rule is there, so that it can be ended; open nothing more."""
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))


async def end_what_does_not_meet(connection: AsyncConnection, tenant_id: UUID | None, rule: Rule) -> int:
    """Revoke open sessions and tokens that were proved by less than `rule` demands; returns how many there were."""
    people = select(memberships.c.user_id).where(memberships.c.tenant_id.is_not_distinct_from(tenant_id))
    result = await connection.execute(
        update(admin_tokens)
        .where(
            admin_tokens.c.user_id.in_(people),
            admin_tokens.c.proved_by.not_in(MEETS[rule]),
            admin_tokens.c.revoked_at.is_(None),
            admin_tokens.c.expires_at > func.now(),
        )
        .values(revoked_at=func.clock_timestamp())
    )
    return result.rowcount
