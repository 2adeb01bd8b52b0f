"""Verifies exported files against their manifests: size, checksum, and rows and sums computed from the file.

Rows and sums of an XLSX workbook are not computed, because its numbers are floats.
"""

import csv
from collections.abc import Iterator
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from billing.exports import manifest as manifests
from billing.exports.datasets import usd_text
from billing.exports.manifest import Manifest
from billing.exports.stores import sha256_of
from core.errors import InvalidRequest

BATCH = 8192


class VerificationResult(msgspec.Struct, frozen=True):
    """The result for one manifest; `problems` is empty when the file matches it."""

    manifest: str
    dataset: str
    period_start: str
    revision: int
    rows: int
    sha256: str
    problems: list[str]


def verify_exports(path: Path) -> list[VerificationResult]:
    """Verify every manifest at or below `path`, in the order of their paths. Raises InvalidRequest without any."""
    found = [path] if path.is_file() else sorted(path.rglob(manifests.FILE_NAME))
    if not found:
        raise InvalidRequest(f"there is no {manifests.FILE_NAME} at or below {path}")
    return [_verify_manifest(one) for one in found]


def _verify_manifest(place: Path) -> VerificationResult:
    try:
        manifest = manifests.decode(place.read_bytes())
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        return VerificationResult(str(place), "", "", 0, 0, "", [f"it is no manifest: {error}"])
    data = place.parent / Path(manifest.file).name
    problems = list(_problems(manifest, data)) if data.is_file() else [f"{data.name} is missing"]
    return VerificationResult(
        str(place),
        manifest.dataset,
        manifest.period_start.isoformat(),
        manifest.revision,
        manifest.rows,
        manifest.sha256,
        problems,
    )


def _problems(manifest: Manifest, data: Path) -> Iterator[str]:
    if manifest.schema != manifests.SCHEMA:
        yield f"the schema is {manifest.schema}, not {manifests.SCHEMA}"
    if data.stat().st_size != manifest.bytes:
        yield f"{data.name} has {data.stat().st_size:,} bytes, not {manifest.bytes:,}"
    with data.open("rb") as file:
        digest = sha256_of(file)
    if digest != manifest.sha256:
        yield f"the checksum of {data.name} is {digest}, not {manifest.sha256}"
        return
    if manifest.format == "xlsx":
        return
    names = list(manifest.sums)
    rows, sums = _count(_records(manifest.format, data, names), names)
    if rows != manifest.rows:
        yield f"{data.name} has {rows:,} rows, not {manifest.rows:,}"
    for name in names:
        if sums[name] != manifest.sums[name]:
            yield f"{name} adds up to {sums[name]}, not {manifest.sums[name]}"


def _records(format: str, data: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    if format == "parquet":
        with pq.ParquetFile(data) as file:
            for batch in file.iter_batches(BATCH, columns=names or None):
                yield from batch.to_pylist()
    elif format == "csv":
        with data.open(encoding="utf-8", newline="") as lines:
            yield from csv.DictReader(lines)
    else:
        with data.open("rb") as objects:
            for line in objects:
                if line.startswith(b"{"):
                    yield msgspec.json.decode(line.rstrip(b",\n"))


def _count(records: Iterator[dict[str, Any]], names: list[str]) -> tuple[int, dict[str, str]]:
    rows = 0
    sums = dict.fromkeys(names, Decimal(0))
    with localcontext() as context:
        context.prec = 60
        for record in records:
            rows += 1
            for name in names:
                if record[name] not in (None, ""):
                    sums[name] += Decimal(record[name])
    return rows, {name: usd_text(total) for name, total in sums.items()}
