"""The manifest beside each data file: what it is, how many rows, what its amounts add up to, and its checksum."""

from datetime import datetime
from uuid import UUID

import msgspec

from billing.exports.columns import Column, ColumnKind

SCHEMA = "penstock-export/1"
FILE_NAME = "manifest.json"


class Manifest(msgspec.Struct, frozen=True):
    """One revision of one period. Sums are exact decimal dollars by column."""

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
    """PostgreSQL's snapshot that all of it was read from."""
    created_at: datetime


def column_types(columns: tuple[Column, ...]) -> list[dict[str, str]]:
    """Columns as the manifest names them."""
    types = {
        ColumnKind.AMOUNT: "decimal(38,12) USD",
        ColumnKind.DECIMAL: "decimal(38,12)",
        ColumnKind.INSTANT: "timestamp UTC",
    }
    return [{"name": column.name, "type": types.get(column.kind, column.kind.value)} for column in columns]


def encode(manifest: Manifest) -> bytes:
    """Indented JSON with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode(content: bytes) -> Manifest:
    """Raises msgspec.ValidationError or DecodeError for what is no manifest."""
    return msgspec.json.decode(content, type=Manifest)
