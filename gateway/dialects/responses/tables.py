"""The table of stored responses, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import Boolean, Column, ForeignKeyConstraint, Index, LargeBinary, Table, Uuid, text

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
    instant("runs_until", nullable=True),
    Column("in_progress", Boolean, nullable=False, server_default=text("false")),
    Column("cancel", Boolean, nullable=False, server_default=text("false")),
    ForeignKeyConstraint(["tenant_id", "project_id"], ["projects.tenant_id", "projects.id"]),
    Index(None, "tenant_id", "project_id"),
    Index(None, "expires_at"),
    Index(None, "project_id", "runs_until", postgresql_where=text("runs_until IS NOT NULL")),
)
"""One response: the items that its request brought and the response object, both JSON packed by zlib. Bytes, since text
columns hold no NUL. `previous_id` may name a row that has been deleted; the id is that of the request.

A response in the background has `runs_until` while it runs, which its process moves forward; when that instant has
passed, the process is gone and the response has failed. It is NULL for every response that has ended.
`in_progress`: its engine has begun. `cancel`: its client has cancelled it."""
