"""Repository of identity providers (OpenID Connect), and of the people that they have named."""

from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from sqlalchemy import any_, delete, func, literal, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.scoping import platform_wide
from tenants.tables import identity_links, identity_providers, memberships, users

_LOCK = 0x70656E5F6F696463
"""Key of the advisory lock: "pen_oidc" in ASCII."""


class Provider(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored provider."""

    id: UUID
    tenant_id: UUID | None
    issuer: str
    client_id: str
    sealed_client_secret: bytes
    mail_domains: list[str]
    default_role: str | None
    used_at: datetime | None = None
    """The first sign-in through it since its last change; None = none."""

    def __repr__(self) -> str:
        """Without the secret, so that no log can show it."""
        return f"Provider(issuer={self.issuer!r}, client_id={self.client_id!r})"


_COLUMNS = tuple(identity_providers.c[name] for name in Provider.__struct_fields__)


@platform_wide("a lock, no rows")
async def lock(connection: AsyncConnection) -> None:
    """Wait for other changes of providers to commit, so that no two take one mail domain."""
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))


async def find(connection: AsyncConnection, tenant_id: UUID | None) -> Provider | None:
    """The provider of an organisation, or of the platform (None); None without one."""
    statement = select(*_COLUMNS).where(identity_providers.c.tenant_id.is_not_distinct_from(tenant_id))
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else Provider(**row._mapping)


@platform_wide("signing in: the domain of the mail address names the provider")
async def find_by_domain(connection: AsyncConnection, domain: str) -> Provider | None:
    """The provider whose people have mail addresses of this domain; None without one."""
    statement = select(*_COLUMNS).where(literal(domain) == any_(identity_providers.c.mail_domains))
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else Provider(**row._mapping)


@platform_wide("signing in: the provider was found before, by a domain")
async def get(connection: AsyncConnection, provider_id: UUID) -> Provider | None:
    """The provider with this id; None when it was removed."""
    row = (
        await connection.execute(select(*_COLUMNS).where(identity_providers.c.id == provider_id))
    ).one_or_none()
    return None if row is None else Provider(**row._mapping)


@platform_wide("signing in: whether the form offers it at all")
async def any_there(connection: AsyncConnection) -> bool:
    """Whether there is any provider."""
    return await connection.scalar(select(identity_providers.c.id).limit(1)) is not None


async def put(connection: AsyncConnection, provider: Provider) -> None:
    """Store a provider in place of the one that the organisation or platform has."""
    values = msgspec.structs.asdict(provider)
    await connection.execute(
        insert(identity_providers)
        .values(values)
        .on_conflict_do_update(index_elements=[identity_providers.c.tenant_id], set_=values)
    )


@platform_wide("signing in: the provider was found before, by a domain")
async def mark_used(connection: AsyncConnection, provider_id: UUID) -> None:
    """Note that a person has signed in through a provider, unless that is noted already."""
    await connection.execute(
        update(identity_providers)
        .where(identity_providers.c.id == provider_id, identity_providers.c.used_at.is_(None))
        .values(used_at=func.now())
    )


async def remove(connection: AsyncConnection, tenant_id: UUID | None) -> None:
    """Delete a provider. Links stay: the same issuer names the same people again."""
    await connection.execute(
        delete(identity_providers).where(identity_providers.c.tenant_id.is_not_distinct_from(tenant_id))
    )


async def linked_user(connection: AsyncConnection, issuer: str, subject: str) -> UUID | None:
    """The person whom an issuer names so; None when no account is linked."""
    statement = select(identity_links.c.user_id).where(
        identity_links.c.issuer == issuer, identity_links.c.subject == subject
    )
    found: UUID | None = await connection.scalar(statement)
    return found


async def link(connection: AsyncConnection, issuer: str, subject: str, user_id: UUID) -> bool:
    """Note whom an issuer names so; False when it is another person already."""
    await connection.execute(
        insert(identity_links)
        .values(issuer=issuer, subject=subject, user_id=user_id)
        .on_conflict_do_nothing()
    )
    return await linked_user(connection, issuer, subject) == user_id


async def count_made(connection: AsyncConnection, tenant_id: UUID, period: timedelta) -> int:
    """How many people of the organisation were made within the last `period` and are named by a provider."""
    named = select(identity_links.c.user_id).where(identity_links.c.user_id == users.c.id).exists()
    count: int = (
        await connection.execute(
            select(func.count())
            .select_from(users.join(memberships, memberships.c.user_id == users.c.id))
            .where(memberships.c.tenant_id == tenant_id, users.c.created_at > func.now() - period, named)
        )
    ).scalar_one()
    return count


async def unlink(connection: AsyncConnection, user_id: UUID) -> None:
    """Forget by whom a person is named: another one who knew the former password may have linked an identity."""
    await connection.execute(delete(identity_links).where(identity_links.c.user_id == user_id))
