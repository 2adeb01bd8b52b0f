"""The FOCUS files pass the official requirements model, and their sums are the ledger's and the hosts' cost."""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal

import openpyxl
import pyarrow.parquet as pq
import pytest

from billing.exports.columns import decimal_text, instant_text
from billing.exports.dataset_registry import write_query
from billing.exports.datasets import DatasetQuery
from billing.exports.focus_columns import CHARGES
from billing.exports.writers import Format
from billing.ledger.transfers import book
from billing.usage.query import bucket_end, bucket_start
from core.db import Database
from core.ids import uuid7
from core.money import usd_to_pico
from tests.integration.billing.exports.books import Busy, busy, ledger
from tests.support.focus_model import Model
from tests.support.focus_rules import NOT_CHECKED, RULES, broken

OURS = {
    "ACCOUNT_NAMING_SUPPORTED",
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED",
    "MULTIPLE_BILLING_ACCOUNT_TYPES_SUPPORTED",
    "MULTIPLE_PRICING_CATEGORIES_SUPPORTED",
    "MULTIPLE_SUB_ACCOUNT_TYPES_SUPPORTED",
    "NEGOTIATED_PRICING_SUPPORTED",
    "PUBLIC_PRICE_LIST_SUPPORTED",
    "REGION_SUPPORTED",
    "RESOURCE_TYPE_ASSIGNMENT_SUPPORTED",
    "SUB_ACCOUNT_SUPPORTED",
    "TAGGING_SUPPORTED",
    "UNIT_PRICING_SUPPORTED",
    "USAGE_MEASUREMENT_SUPPORTED",
}
"""Not ours: zones, reservations, commitment discounts, other currencies."""
GPU = OURS - {
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED",
    "NEGOTIATED_PRICING_SUPPORTED",
    "PUBLIC_PRICE_LIST_SUPPORTED",
    "REGION_SUPPORTED",
    "RESOURCE_TYPE_ASSIGNMENT_SUPPORTED",
    "TAGGING_SUPPORTED",
    "UNIT_PRICING_SUPPORTED",
}

Rows = list[dict[str, str | None]]


async def exported(database: Database, query: DatasetQuery, format: Format) -> bytes:
    file = io.BytesIO()
    async with database.read() as connection:
        await write_query(connection, query, format, file)
    return file.getvalue()


def from_csv(content: bytes) -> Rows:
    """Rows of the file, with empty fields as null."""
    return [
        {name: value or None for name, value in row.items()}
        for row in csv.DictReader(io.StringIO(content.decode()))
    ]


def from_parquet(content: bytes) -> Rows:
    """Rows with typed values in the text that the model's checks read."""
    table = pq.read_table(io.BytesIO(content))
    assert {str(field.type) for field in table.schema if field.name.endswith("Cost")} == {
        "decimal128(38, 12)"
    }
    return [{name: _text(value) for name, value in row.items()} for row in table.to_pylist()]


def _text(value: object) -> str | None:
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    if hasattr(value, "isoformat"):
        return instant_text(value)  # type: ignore[arg-type]
    return None if value is None else str(value)


def from_json(content: bytes) -> Rows:
    """Rows of the file with every value as text."""
    return [{name: _text(value) for name, value in row.items()} for row in json.loads(content)]


def from_xlsx(content: bytes) -> Rows:
    """Rows of the sheet; a decimal column is read from its text with all digits."""
    header, *cells = openpyxl.load_workbook(io.BytesIO(content)).worksheets[0].iter_rows(values_only=True)
    rows = [dict(zip(map(str, header), row, strict=True)) for row in cells]
    return [
        {
            name: _text(row.get(f"{name} (exact)", value))
            for name, value in row.items()
            if "(exact)" not in name
        }
        for row in rows
    ]


READERS = {"csv": from_csv, "json": from_json, "parquet": from_parquet, "xlsx": from_xlsx}


def total(rows: Sequence[Mapping[str, str | None]], column: str) -> int:
    return sum(usd_to_pico(row[column] or "0") for row in rows)


@pytest.mark.parametrize("format", ["csv", "parquet"])
async def test_charges_pass_the_official_model_and_add_up_to_the_ledger(
    database: Database, format: Format
) -> None:
    month = await busy(database)
    content = await exported(database, month.query("focus_charges"), format)
    rows = from_csv(content) if format == "csv" else from_parquet(content)
    findings = Model(OURS).run(rows, list(rows[0]))
    assert findings.failed == {}
    assert findings.warned == {}
    counts = findings.counts()
    assert sum(counts.values()) == 621
    assert counts["passed"] > 250
    assert "failed" not in counts
    assert broken(rows) == {}
    print(f"FOCUS 1.2 over {len(rows)} rows: {dict(counts)}")
    owed = await ledger(database, revenue=1, uncollectible=1, promotions=1, sla_credits=1)
    # `make_customer` gives its credit as a promotion; uncollectible, promotions and credits are debits, so negative.
    assert total(rows, "BilledCost") == owed
    usage = [row for row in rows if row["ChargeCategory"] == "Usage" and row["ChargeClass"] is None]
    assert {row["ChargeCategory"] for row in rows} == {"Usage", "Adjustment", "Credit"}
    assert {row["x_TokenClass"] for row in usage} == {"input", "cached_input", "output", "reasoning"}
    async with database.read() as connection:
        cost = (await connection.exec_driver_sql("SELECT sum(cost), sum(list_cost) FROM usage")).one()
    assert (total(usage, "EffectiveCost"), total(usage, "ListCost")) == (cost[0], cost[1])
    corrections = [row for row in rows if row["ChargeClass"] == "Correction"]
    assert [usd_to_pico(row["BilledCost"] or "") for row in corrections] == [usd_to_pico("-1.23456789")]
    own = [name for name in rows[0] if name.startswith("x_")]
    assert list(rows[0])[-len(own) :] == own
    assert all(re.fullmatch("(x_)?([A-Z][a-z]+)+", name) and len(name) <= 50 for name in rows[0])
    assert "" not in {value for row in rows for value in row.values()}


@pytest.mark.parametrize("dataset", ["focus_charges", "focus_gpu"])
@pytest.mark.parametrize("unit", ["hour", "day", "month"])
async def test_every_export_keeps_the_published_rules(database: Database, dataset: str, unit: str) -> None:
    month = await busy(database, requests=30)
    async with database.system() as connection:  # late usage takes a part of the shortfall back
        post = month.customers[2].tenant_id
        await book(connection, "commit", post, "revenue", "receivable", usd_to_pico("0.5"), uuid7())
    scopes = (None, *(one.tenant_id for one in month.customers)) if dataset == "focus_charges" else (None,)
    for scope in scopes:
        query = month.query(dataset, group_by=(unit,), tenant_id=scope)
        costs = set()
        for format, read in READERS.items():
            rows = read(await exported(database, query, format))  # type: ignore[arg-type]
            findings = Model(OURS if dataset == "focus_charges" else GPU).run(rows, list(rows[0]))
            assert (findings.failed, findings.warned, broken(rows)) == ({}, {}, {}), (format, scope)
            costs.add((len(rows), total(rows, "BilledCost"), total(rows, "EffectiveCost")))
        assert len(costs) == 1


@pytest.mark.parametrize("unit", ["hour", "day", "month"])
async def test_a_shortfall_is_a_charge_of_its_whole_month_at_its_full_cost(
    database: Database, unit: str
) -> None:
    month = await busy(database, requests=10)
    rows = from_csv(await exported(database, month.query("focus_charges", group_by=(unit,)), "csv"))
    [shortfall] = [row for row in rows if "Shortfall" in (row["ChargeDescription"] or "")]
    assert (shortfall["BilledCost"], shortfall["EffectiveCost"]) == ("12.34", "12.34")
    begins = bucket_start(month.end, "month")
    assert (shortfall["ChargePeriodStart"], shortfall["ChargePeriodEnd"]) == (
        instant_text(begins),
        instant_text(bucket_end(begins, "month")),
    )


def test_every_binding_sentence_without_a_check_is_a_rule_here_or_says_why_not() -> None:
    """Of the sentences on our columns that must hold and that the model leaves to people, none is forgotten."""
    ours = {rule_id for rule in (*RULES, *NOT_CHECKED) for rule_id in rule.id.split(", ")}
    model = Model(OURS)
    prose = {
        name
        for name, rule in model.rules.items()
        if not rule["ValidationCriteria"]["Requirement"]
        and rule["EntityType"] == "Column"
        and rule["Reference"] in {column.name for column in CHARGES}
        and rule["ValidationCriteria"]["Keyword"] in ("MUST", "MUST NOT")
    }
    assert ours - prose <= {"EffectiveCost-C-005-C", "SkuMeter-C-006-O"}
    assert prose - ours == set()


async def test_a_tenant_gets_its_own_charges_only(database: Database) -> None:
    month = await busy(database)
    mine = month.customers[2].tenant_id
    rows = from_csv(await exported(database, month.query("focus_charges", tenant_id=mine), "csv"))
    assert {row["BillingAccountId"] for row in rows} == {str(mine)}
    assert {row["BillingAccountName"] for row in rows} == {"Große Post GmbH"}


async def test_our_own_gpu_cost_passes_the_model_and_is_the_hosts_cost(database: Database) -> None:
    month = await busy(database)
    rows = from_csv(await exported(database, month.query("focus_gpu"), "csv"))
    findings = Model(GPU).run(rows, list(rows[0]))
    assert findings.failed == {}
    assert findings.warned == {}
    assert total(rows, "BilledCost") == month.gpu_cost
    idle = [row for row in rows if row["SubAccountId"] is None]
    assert "warm_idle" in {row["x_State"] for row in idle}
    hours = sum(Decimal(row["ConsumedQuantity"] or "0") for row in rows)
    assert abs(hours - Decimal(8 * (3600 + 1188 + 3600)) / 3600) < Decimal("1e-9")


async def test_the_model_finds_what_is_wrong(database: Database) -> None:
    """The check of the model is effective: each broken file fails the rule about it."""
    month = await busy(database, requests=20)
    good = from_csv(await exported(database, month.query("focus_charges"), "csv"))
    assert {rule.split("-")[0] for rule in _failures(month, good, BilledCost="1000")} == {"BilledCost"}
    assert "ChargeCategory-C-003-M" in _failures(month, good, ChargeCategory="Fee")
    assert "ContractedUnitPrice-C-011-C" in _failures(month, good, ContractedCost="0.1")
    assert "BillingPeriodStart-C-002-M" in _failures(month, good, BillingPeriodStart="2026-11-01 00:00:00Z")
    assert "BilledCost-C-005-C" in _failures(month, good, InvoiceIssuerName="Somebody else")
    assert "SkuPriceId-C-008-M" in _failures(month, good, SkuPriceId="same")
    assert (
        "CostAndUsage-D-006-M"
        in Model(OURS).run(good, [name for name in good[0] if name != "BilledCost"]).failed
    )


def _failures(month: Busy, rows: Rows, **changed: str) -> set[str]:
    usage = [dict(row, **changed) for row in rows if row["ChargeCategory"] == "Usage" and row["x_Model"]]
    findings = Model(OURS).run(usage, list(rows[0]))
    return {name for name in findings.failed if findings.states[name] == "failed" and "-000-" not in name} - {
        "CostAndUsage-D-002-M"
    }
