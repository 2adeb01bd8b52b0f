"""The table of stored responses, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import Column, ForeignKeyConstraint, Index, LargeBinary, Table, Uuid

from core.columns import instant, uid
from core.db import metadata

stored_responses = Table(
    "stored_responses",
    metadata,
    Column("id", Uuid, primary_key=True),
    uid("tenant_id"),
    uid("project_id"),
    Column("previous_id", Uuid),
    instant("created_at", now=True),
    instant("expires_at"),
    Column("input", LargeBinary, nullable=False),
    Column("response", LargeBinary, nullable=False),
    ForeignKeyConstraint(["tenant_id", "project_id"], ["projects.tenant_id", "projects.id"]),
    Index(None, "tenant_id", "project_id"),
    Index(None, "expires_at"),
)
"""One response: the items that its request brought and the response object, both JSON packed by zlib. Bytes, since text
columns hold no NUL. `previous_id` may name a row that has been deleted; the id is that of the request."""
