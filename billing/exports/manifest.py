"""The manifest beside each data file: its origin, columns, row count, sums of amounts and checksum."""

from datetime import datetime
from uuid import UUID

import msgspec

from billing.exports.columns import Column, ColumnKind

SCHEMA = "penstock-export/1"
FILE_NAME = "manifest.json"


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of one revision of one period; sums are exact decimal dollars by column."""

    schema: str
    name: str
    dataset: str
    columns_version: str
    format: str
    file: str
    period_start: datetime
    period_end: datetime
    revision: int
    group_by: str
    tenant_id: UUID | None
    rows: int
    sums: dict[str, str]
    sha256: str
    bytes: int
    columns: list[dict[str, str]]
    snapshot: str
    """The PostgreSQL snapshot from which the file was read (pg_current_snapshot)."""
    created_at: datetime


def column_types(columns: tuple[Column, ...]) -> list[dict[str, str]]:
    """Names and types of columns as the manifest lists them."""
    types = {
        ColumnKind.AMOUNT: "decimal(38,12) USD",
        ColumnKind.DECIMAL: "decimal(38,12)",
        ColumnKind.INSTANT: "timestamp UTC",
    }
    return [{"name": column.name, "type": types.get(column.kind, column.kind.value)} for column in columns]


def encode(manifest: Manifest) -> bytes:
    """Indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode(content: bytes) -> Manifest:
    """The manifest of JSON text. Raises msgspec.DecodeError or ValidationError for any other text."""
    return msgspec.json.decode(content, type=Manifest)
