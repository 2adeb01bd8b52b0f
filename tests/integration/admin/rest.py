"""Callers of the admin REST."""

from uuid import uuid4

import httpx

from admin import users as admin_users
from admin.users import create_admin_token
from core.db import Database
from tenants.roles import Role
from tests.support.tenancy import ADMIN, PEPPER, Organisation

PASSWORD = "correct horse battery"
NOBODY = "0198c0de-dead-7000-8000-000000000000"
"""The id of nothing; fixed, because test names must not differ between workers."""


class Caller:
    """HTTP calls with one token."""

    def __init__(self, client: httpx.AsyncClient, token: str) -> None:
        self.client = client
        self.headers = {"authorization": f"Bearer {token}"}

    async def __call__(
        self, method: str, path: str, body: object = None, **options: object
    ) -> httpx.Response:
        return await self.client.request(
            method, f"/admin/v1{path}", json=body, headers=self.headers, **options
        )


async def token_of(database: Database, role: Role, acme: Organisation | None = None) -> str:
    user = await admin_users.create_user(
        database,
        ADMIN,
        email=f"{role}-{uuid4().hex[:8]}@example.com",
        password=PASSWORD,
        role=role,
        tenant_id=None if acme is None else acme.tenant_id,
    )
    made = await create_admin_token(
        database, ADMIN, pepper=PEPPER, user_id=user.id, name="test", scopes=["access"]
    )
    return made.secret
