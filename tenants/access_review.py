"""Repository of the access review: every person, token, open session and key, with what it may do and its last use."""

from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.scoping import platform_wide


class AccessRow(msgspec.Struct, frozen=True):
    """A person, a token or session of a person, or a key."""

    kind: str
    """person | token | session (over REST) | console (a session there) | key"""
    id: UUID
    name: str
    """Mail address of a person; name of a token or key."""
    owner: str | None
    """Mail address of the person whose token or session it is."""
    tenant_id: UUID | None
    tenant: str | None
    """null = the platform's."""
    project: str | None
    role: str | None
    scopes: list[str] | None
    """null = all that the role may, or of a key every endpoint."""
    restrictions: str | None
    """Of a key: models, networks, regions and GPUs that it is limited to."""
    second_factor: bool | None
    sign_in: str | None
    """How a person may sign in, or signed in for a token or session."""
    status: str
    """active | disabled | revoked | expired"""
    created_at: datetime
    expires_at: datetime | None
    last_sign_in_at: datetime | None
    last_used_at: datetime | None
    """Of a person: the last use of any token or session that is still stored."""


_ROWS = """
    WITH people AS MATERIALIZED (
        SELECT u.id, u.email, u.status, u.created_at, m.tenant_id, m.role, t.name AS tenant,
            EXISTS (SELECT FROM second_factors f WHERE f.user_id = u.id AND f.confirmed_at IS NOT NULL)
                AS second_factor,
            EXISTS (SELECT FROM identity_links l WHERE l.user_id = u.id) AS linked,
            coalesce((SELECT r.rule FROM sign_in_rules r WHERE r.tenant_id IS NOT DISTINCT FROM m.tenant_id),
                'password') AS rule
        FROM users u JOIN memberships m ON m.user_id = u.id LEFT JOIN tenants t ON t.id = m.tenant_id
        WHERE CAST(:tenant AS uuid) IS NULL OR m.tenant_id = :tenant),
    signed_in AS (
        SELECT a.object_id, max(a.at) AS at FROM audit_log a WHERE a.action = 'user.sign_in' GROUP BY a.object_id),
    used AS (SELECT k.user_id, max(k.last_used_at) AS at FROM admin_tokens k GROUP BY k.user_id)
    SELECT 1 AS place, 'person' AS kind, p.id, p.email AS name, NULL AS owner, p.tenant_id, p.tenant, NULL AS project,
        p.role, CAST(NULL AS text[]) AS scopes, NULL AS restrictions, p.second_factor,
        CASE WHEN p.rule = 'oidc' THEN 'oidc'
            ELSE CASE WHEN p.second_factor OR p.rule = 'second_factor' THEN 'password and code' ELSE 'password' END
                || CASE WHEN p.linked THEN ', oidc' ELSE '' END END AS sign_in,
        p.status, p.created_at, CAST(NULL AS timestamptz) AS expires_at, s.at AS last_sign_in_at, d.at AS last_used_at
    FROM people p LEFT JOIN signed_in s ON s.object_id = p.id::text LEFT JOIN used d ON d.user_id = p.id
    UNION ALL
    SELECT 2, k.kind, k.id, k.name, p.email, p.tenant_id, p.tenant, NULL, p.role, k.scopes, NULL, p.second_factor,
        k.proved_by,
        CASE WHEN k.revoked_at IS NOT NULL THEN 'revoked' WHEN k.expires_at <= now() THEN 'expired'
            WHEN p.status <> 'active' THEN 'disabled' ELSE 'active' END,
        k.created_at, k.expires_at, NULL, k.last_used_at
    FROM admin_tokens k JOIN people p ON p.id = k.user_id
    WHERE k.kind = 'token' OR (k.revoked_at IS NULL AND k.expires_at > now())
    UNION ALL
    SELECT 3, 'key', k.id, k.name, NULL, k.tenant_id, t.name, j.name, NULL, k.scopes,
        nullif(concat_ws('; ', 'models ' || array_to_string(k.allowed_models, ' '),
            'networks ' || array_to_string(k.networks, ' '), 'regions ' || array_to_string(k.regions, ' '),
            'gpus ' || array_to_string(k.gpus, ' ')), ''), NULL, NULL,
        CASE WHEN k.status = 'active' AND k.expires_at <= now() THEN 'expired' ELSE k.status END, k.created_at,
        k.expires_at, NULL, k.last_used_at
    FROM api_keys k JOIN tenants t ON t.id = k.tenant_id JOIN projects j ON j.id = k.project_id
    WHERE CAST(:tenant AS uuid) IS NULL OR k.tenant_id = :tenant
    ORDER BY tenant NULLS FIRST, tenant_id, place, created_at, id
"""


@platform_wide("platform roles review all access; with tenant_id it is scoped to one organisation")
async def list_access(connection: AsyncConnection, tenant_id: UUID | None) -> list[AccessRow]:
    """The rows of one organisation, or of all and the platform with None: people first, then tokens, then keys."""
    rows = await connection.execute(text(_ROWS), {"tenant": tenant_id})
    return [
        AccessRow(**{name: value for name, value in row._mapping.items() if name != "place"}) for row in rows
    ]
