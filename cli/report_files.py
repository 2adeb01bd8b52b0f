"""Shared parts of the commands on reports and exports: settings of destinations, and writing report files."""

import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Literal, TypedDict
from uuid import UUID

import msgspec

from admin import exports as admin_exports
from admin import usage as admin_usage
from admin.actor import Actor
from billing.exports.writers import FORMATS, Format
from billing.reports.compare import flatten, parse_compare
from billing.reports.report_format import compared_csv
from billing.usage.period import parse_instant
from core.db import Database
from core.errors import InvalidRequest
from core.settings import Settings

ReportFormat = Literal["csv", "json", "xlsx", "parquet", "focus"]


class ReportArguments(TypedDict):
    """Arguments that the report functions of admin/ share: [start, end), groups, and an organisation or None = all."""

    start: datetime
    end: datetime
    group_by: tuple[str, ...]
    tenant_id: UUID | None


def export_settings(data_dir: Path | None) -> Settings:
    """Settings of the environment, with `data_dir` when given."""
    settings = Settings()
    return settings if data_dir is None else settings.model_copy(update={"data_dir": data_dir})


async def write_report(
    database: Database, who: Actor, arguments: ReportArguments, format: ReportFormat, out: Path | None
) -> None:
    """Write the report, or its charges as FOCUS, to `out` or stdout. Raises InvalidRequest."""
    kind = _file_format(format, out)
    if out is None and kind in ("xlsx", "parquet"):
        raise InvalidRequest(f"{kind} is no text: say where with --out FILE", param="format")
    found = await admin_exports.download(
        database,
        who,
        dataset="focus_charges" if format == "focus" else "report",
        format=kind,
        **arguments,
    )
    _write(found.chunks, out)
    if out is not None:
        print(f"{out}: {found.rows:,} rows", file=sys.stderr)


def _write(chunks: Iterator[bytes], out: Path | None) -> None:
    """Write to stdout, or atomically to a file. Raises InvalidRequest when the file cannot be written."""
    if out is None:
        for piece in chunks:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    part = out.with_name(f".{out.name}.part")
    try:
        with part.open("wb") as file:
            for piece in chunks:
                file.write(piece)
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InvalidRequest(f"{out} cannot be written: {error.strerror}", param="out") from None


def _file_format(format: ReportFormat, out: Path | None) -> Format:
    if format != "focus":
        return format
    ending = "csv" if out is None else out.suffix.removeprefix(".")
    if ending not in FORMATS:
        raise InvalidRequest(f"a file of FOCUS ends in {', '.join(FORMATS)}, not {ending!r}", param="out")
    return ending


async def write_comparison(
    database: Database,
    who: Actor,
    arguments: ReportArguments,
    text: str,
    format: ReportFormat,
    out: Path | None,
) -> None:
    """Write the comparison with the period `text` to `out` or stdout, as CSV or JSON. Raises InvalidRequest."""
    if format not in ("csv", "json"):
        raise InvalidRequest("a comparison is csv or json", param="format")
    before = parse_compare(text, arguments["start"], arguments["end"], parse_instant)
    rows = flatten(await admin_usage.compare_usage(database, who, before=before, **arguments), with_gpu=True)
    content = (
        compared_csv(rows).encode()
        if format == "csv"
        else msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n"
    )
    _write(iter((content,)), out)
