"""The access review: who can do what, and when it was last used, as rows or a file."""

import csv
import io
from typing import Literal
from uuid import UUID

import msgspec

from admin.actor import Actor, readable, require
from core.db import Database
from core.spreadsheets import escape_formula
from tenants import access_review as review
from tenants.access_review import AccessRow
from tenants.roles import PLATFORM_ROLES, TENANT_OWNER

ReviewFormat = Literal["csv", "json"]
MEDIA_TYPES: dict[ReviewFormat, str] = {"csv": "text/csv; charset=utf-8", "json": "application/json"}


async def list_access(database: Database, actor: Actor, *, tenant_id: UUID | None = None) -> list[AccessRow]:
    """Every person, token, open session and key of an organisation; None = of all and the platform, or an owner's own.

    An owner reads the own organisation's. Raises PermissionDenied.
    """
    scope = readable(actor, tenant_id)
    require(actor, *PLATFORM_ROLES, TENANT_OWNER, tenant_id=scope)
    async with database.snapshot() as connection:
        return await review.list_access(connection, scope)


def to_file(rows: list[AccessRow], format: ReviewFormat) -> bytes:
    """The rows as JSON, or as CSV with a header; texts that a spreadsheet would run as formulas get an apostrophe."""
    plain = [msgspec.to_builtins(row) for row in rows]
    if format == "json":
        return msgspec.json.encode(plain)
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(AccessRow.__struct_fields__)
    for row in plain:
        writer.writerow([_cell(value) for value in row.values()])
    return out.getvalue().encode()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape_formula(" ".join(value) if isinstance(value, list) else str(value))
