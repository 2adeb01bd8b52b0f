"""Tables of the scheduler, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import Column, DateTime, Index, Integer, LargeBinary, Table, Text, Uuid

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
