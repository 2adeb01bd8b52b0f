"""Tables of the scheduler, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
    true,
)

from core.columns import count, instant, string
from core.db import metadata

request_traces = Table(
    "request_traces",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("model", Text, nullable=False),
    Column("first_at", DateTime(timezone=True), nullable=False),
    Column("last_at", DateTime(timezone=True), nullable=False),
    Column("requests", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Index("ix_request_traces_last_at", "last_at"),
)
"""Batches of recorded requests (scheduler/request_trace.py), each of one model and a few seconds."""

scheduler_lease = Table(
    "scheduler_lease",
    metadata,
    Column("one", Boolean, primary_key=True, server_default=true()),
    count("term"),
    string("owner"),
    instant("renewed_at"),
    instant("serving_since", now=True),
    CheckConstraint("one", name="one"),
    CheckConstraint("term >= 0", name="term"),
)
"""One row: which scheduler serves (scheduler/lease.py). `term` grows with each owner; no owner = the lease is free.
`serving_since`: since when the owner has renewed without a gap, in which it may not have stored heartbeats."""

scheduler_authority = Table(
    "scheduler_authority",
    metadata,
    Column("one", Boolean, primary_key=True, server_default=true()),
    Column("certificate", LargeBinary, nullable=False),
    Column("encrypted_key", LargeBinary, nullable=False),
    CheckConstraint("one", name="one"),
)
"""One row: who signs schedulers' certificates (scheduler/authority.py). The internal token encrypts the key."""
