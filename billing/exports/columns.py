"""Columns of a data set and the kinds of their values, for every file format."""

from datetime import datetime
from decimal import Decimal
from enum import Enum

import msgspec

Value = str | int | bool | Decimal | datetime | dict[str, int] | None
Record = tuple[Value, ...]


class ColumnKind(Enum):
    """The kind of a column's values."""

    TEXT = "text"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    AMOUNT = "amount"
    """Exact dollars, summed in manifests."""
    DECIMAL = "decimal"
    """Any other exact number: a quantity, a unit price, a percentage."""
    INSTANT = "instant"
    COUNTS = "counts"
    """Counts by name: an object in JSON, `name=count name=count` in other formats."""


class Column(msgspec.Struct, frozen=True):
    """One column: its name and kind."""

    name: str
    kind: ColumnKind = ColumnKind.TEXT

    @property
    def is_decimal(self) -> bool:
        """Whether its values are exact decimals."""
        return self.kind in (ColumnKind.AMOUNT, ColumnKind.DECIMAL)


def columns(**kinds: ColumnKind) -> tuple[Column, ...]:
    """Columns from keyword arguments (name=kind), in their order."""
    return tuple(Column(name, kind) for name, kind in kinds.items())


def decimal_text(value: Decimal) -> str:
    """A decimal with a point and without an exponent (`1000.0`), so that readers do not infer an integer."""
    digits = format(value, "f")
    return digits if "." in digits else f"{digits}.0"


def counts_text(value: dict[str, int]) -> str:
    """Counts by name, such as `completed=3 length=1`."""
    return " ".join(f"{name}={count}" for name, count in value.items())


def instant_text(value: datetime) -> str:
    """A UTC instant in ISO 8601, with microseconds unless they are 0."""
    shown = value.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{shown}.{value.microsecond:06d}Z" if value.microsecond else f"{shown}Z"
