"""Customers' charges in FOCUS 1.2 (focus.finops.org), by UTC day, hour or month.

Usage has a row per organisation, project, key, model, tier, region, class of GPU, price version and token class, so
that unit price times quantity is exactly the cost. Credits, expiries, adjustments, commitment shortfalls and
uncollected usage have rows of their own. The sum of BilledCost is what customers owe for the period, prepaid or
postpaid. A top-up is a payment, not a charge. docs/finance/exports.md has the sums.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.exports.columns import Record, Value
from billing.exports.datasets import BLOCK, Dataset, DatasetQuery, usd
from billing.exports.focus_columns import (
    CATEGORY,
    CHARGES,
    CONSUMED_UNIT,
    PRICING_UNIT,
    PROVIDER,
    SERVICE,
    SUBCATEGORY,
    TAG_PREFIX,
    VERSION,
)
from billing.reports.books import invoice_names
from billing.usage.query import bucket_end, bucket_start, check_period, months_of, time_dimension
from billing.usage.sums import DAILY_SUMS, HOURLY_SUMS, with_labels
from core.errors import Conflict
from core.money import TOKENS_PER_MTOK

_CLASSES = ("input", "cached_input", "output", "reasoning")
_METERS = {
    "input": "Input Tokens",
    "cached_input": "Cached Input Tokens",
    "output": "Output Tokens",
    "reasoning": "Reasoning Tokens",
}
_CORRECTED_USAGE: dict[str, Value] = {
    "ChargeCategory": "Usage",
    "ChargeClass": "Correction",
    "ConsumedQuantity": Decimal(0),
    "ConsumedUnit": CONSUMED_UNIT,
}
"""Columns of a correction of an earlier month's usage: it has the category of what it corrects."""
_RATES = ", ".join(
    f"{alias}.{name} AS {prefix}_{name}"
    for alias, prefix in (("p", "price"), ("l", "list"))
    for name in _CLASSES
)
_USAGE = """
    WITH {usage_sums},
    grouped AS (
        SELECT date_trunc(:unit, hour, 'UTC') AS at, tenant_id, project_id, key_id, model, tier, region,
            price_version, list_price_version, simulated, gpu, end_user, tags,
            sum(input_tokens - cached_input_tokens) AS input, sum(cached_input_tokens) AS cached_input,
            sum(output_tokens - reasoning_tokens) AS output, sum(reasoning_tokens) AS reasoning,
            sum(cost) AS cost, sum(list_cost) AS list_cost
        FROM usage_sums WHERE CAST(:tenant AS uuid) IS NULL OR tenant_id = :tenant
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
    SELECT g.*, t.name AS tenant, j.name AS project, k.name AS key_name, p.model AS priced_as, {rates}
    FROM grouped g
    JOIN price_versions p ON p.id = g.price_version JOIN price_versions l ON l.id = g.list_price_version
    LEFT JOIN tenants t ON t.id = g.tenant_id LEFT JOIN projects j ON j.id = g.project_id
    LEFT JOIN api_keys k ON k.id = g.key_id
    ORDER BY g.at, g.tenant_id, g.project_id, g.key_id, g.model, g.tier, g.region, g.price_version,
        g.list_price_version, g.simulated, g.gpu, g.end_user, g.tags
"""
_BOOKED = """
    SELECT t.kind, t.tenant_id, n.name AS tenant, date_trunc(:unit, t.effective_at, 'UTC') AS at,
        a.corrects, a.reason, c.code AS credit, d.code AS debit, t.amount
    FROM ledger_transfers t
    JOIN ledger_accounts c ON c.id = t.credit_account JOIN ledger_accounts d ON d.id = t.debit_account
    LEFT JOIN tenants n ON n.id = t.tenant_id LEFT JOIN adjustments a ON a.id = t.source_id
    WHERE t.effective_at >= :start AND t.effective_at < :end
        AND t.kind IN ('adjustment', 'commit', 'uncollectible', 'grant', 'sla_credit', 'expiry')
        AND (CAST(:tenant AS uuid) IS NULL OR t.tenant_id = :tenant)
    ORDER BY t.effective_at, t.id
"""


def focus_charges(connection: AsyncConnection, query: DatasetQuery) -> Dataset:
    """The charges of `query`. Raises InvalidRequest for an invalid period; reading raises Conflict for bad data."""
    check_period(query.start, query.end)
    return Dataset("focus_charges", VERSION, CHARGES, _blocks(connection, query))


class _Charge(msgspec.Struct):
    """The period, organisation and invoice of a row."""

    start: datetime
    end: datetime
    tenant_id: UUID
    tenant: str | None
    invoice: str | None


async def _blocks(connection: AsyncConnection, query: DatasetQuery) -> AsyncIterator[Sequence[Record]]:
    unit = time_dimension(query.group_by) or "day"
    invoices = await invoice_names(connection, months_of(query.start, query.end))
    bound = {"start": query.start, "end": query.end, "tenant": query.tenant_id, "unit": unit}
    block: list[Record] = []
    usage = _USAGE.format(usage_sums=with_labels(HOURLY_SUMS if unit == "hour" else DAILY_SUMS), rates=_RATES)
    for statement, make in ((usage, _usage), (_BOOKED, _booked)):
        async for row in await connection.stream(text(statement), bound):
            block += make(row, _charge(query, row, unit, invoices))
            if len(block) >= BLOCK:
                yield block
                block = []
    yield block


def _charge(query: DatasetQuery, row: Row[Any], unit: str, invoices: dict[tuple[UUID, date], str]) -> _Charge:
    start, end = max(row.at, query.start), min(bucket_end(row.at, unit), query.end)
    month = bucket_start(row.at, "month").date()
    return _Charge(start, end, row.tenant_id, row.tenant, invoices.get((row.tenant_id, month)))


def _usage(row: Row[Any], charge: _Charge) -> list[Record]:
    """One record per token class. Raises Conflict when tokens times price is not the booked cost."""
    found = []
    tags = _tags(row)
    cost = list_cost = 0
    for name in _CLASSES:
        tokens = int(getattr(row, name))
        if tokens == 0:
            continue
        price, listed = getattr(row, f"price_{name}"), getattr(row, f"list_{name}")
        cost += tokens * price
        list_cost += tokens * listed
        values = _common(charge)
        paid = usd(tokens * price)
        sku = f"{row.priced_as}/{row.tier}/{name}"
        values |= {
            "BilledCost": paid,
            "EffectiveCost": paid,
            "ContractedCost": paid,
            "ListCost": usd(tokens * listed),
            "ContractedUnitPrice": usd(price * TOKENS_PER_MTOK),
            "ListUnitPrice": usd(listed * TOKENS_PER_MTOK),
            "ChargeCategory": "Usage",
            "ChargeDescription": f"{_METERS[name]} of {row.priced_as}, {row.tier}",
            "ChargeFrequency": "Usage-Based",
            "ConsumedQuantity": Decimal(tokens),
            "ConsumedUnit": CONSUMED_UNIT,
            "PricingCategory": "Standard",
            "PricingQuantity": Decimal(tokens).scaleb(-6),
            "PricingUnit": PRICING_UNIT,
            "RegionId": row.region,
            "RegionName": row.region,
            "ResourceId": str(row.key_id),
            "ResourceName": row.key_name or "API key",
            "ResourceType": "API key",
            "SkuId": sku,
            "SkuMeter": _METERS[name],
            "SkuPriceId": f"{row.list_price_version}/{name}",
            "SkuPriceDetails": msgspec.json.encode(
                {"x_Model": row.model, "x_Tier": row.tier, "x_TokenClass": name}
            ).decode(),
            "SubAccountId": str(row.project_id),
            "SubAccountName": row.project or str(row.project_id),
            "SubAccountType": "Project",
            "Tags": tags,
            "x_Model": row.model,
            "x_Tier": row.tier,
            "x_TokenClass": name,
            "x_PriceVersion": row.price_version,
            "x_Simulated": row.simulated,
            "x_Gpu": row.gpu or None,
        }
        found.append(_record(values))
    if (cost, list_cost) != (int(row.cost), int(row.list_cost)):
        raise Conflict(
            f"usage of {row.model} at price version {row.price_version} from {charge.start:%Y-%m-%d %H:%M} does not "
            "cost tokens times price; nothing is exported"
        )
    return found


def _tags(row: Row[Any]) -> str | None:
    """The tags as a JSON object. The end user is a tag of ours, which FOCUS asks to name with a prefix."""
    found = dict(sorted((row.tags or {}).items()))
    if row.end_user is not None:
        found[f"{TAG_PREFIX}end_user"] = row.end_user
    return msgspec.json.encode(found).decode() if found else None


def _booked(row: Row[Any], charge: _Charge) -> list[Record]:
    """The record of a transfer that changes a customer's charges; none for one that only shows how usage was paid."""
    if row.kind == "uncollectible":
        if row.reason is not None:  # part of an adjustment, whose record has its full amount
            return []
        return [
            _adjustment_charge(
                charge, -row.amount, "Adjustment", "Usage beyond the prepaid credit, not charged"
            )
        ]
    if row.kind == "adjustment":
        amount = row.amount if row.credit == "revenue" else -row.amount
        earlier = row.corrects is not None and row.corrects < bucket_start(row.at, "month").date()
        description = f"Adjustment: {row.reason}" if row.reason else "Adjustment"
        return [
            _adjustment_charge(
                charge, amount, "Adjustment", description, **(_CORRECTED_USAGE if earlier else {})
            )
        ]
    if row.kind == "commit":
        return [_shortfall(charge, row.amount if row.credit == "revenue" else -row.amount)]
    if row.kind == "expiry":
        if row.credit not in ("promotions", "sla_credits"):
            return []
        return [_adjustment_charge(charge, row.amount, "Adjustment", "Credit that expired unused")]
    description = "Promotional credit" if row.kind == "grant" else "Service level credit"
    return [_adjustment_charge(charge, -row.amount, "Credit", description)]


def _adjustment_charge(charge: _Charge, pico: int, category: str, description: str, **more: Value) -> Record:
    """A charge without quantity; `more` has further columns or replaces some."""
    amount = usd(int(pico))
    values = _common(charge) | {
        name: amount for name in ("BilledCost", "EffectiveCost", "ContractedCost", "ListCost")
    }
    values |= {"ChargeCategory": category, "ChargeDescription": description, "ChargeFrequency": "One-Time"}
    return _record(values | more)


def _shortfall(charge: _Charge, pico: int) -> Record:
    """The shortfall of a committed spend, a charge for the whole month that is over.

    Category Adjustment: it buys nothing that later usage consumes, as a Purchase does, and is no quantity of tokens.
    FOCUS 1.2 (EffectiveCost-C-010-C) requires the BilledCost of such a charge as EffectiveCost. Below 0, late usage
    of an earlier month takes back what was billed as that month's shortfall.
    """
    month = bucket_start(charge.start, "month")
    whole = msgspec.structs.replace(charge, start=month, end=bucket_end(month, "month"))
    if pico < 0:
        what = "Committed spend met by late usage"
        return _adjustment_charge(whole, pico, "Adjustment", what, ChargeClass="Correction")
    what = "Shortfall of the committed monthly spend"
    return _adjustment_charge(whole, pico, "Adjustment", what, ChargeFrequency="Recurring")


def _common(charge: _Charge) -> dict[str, Value]:
    month = bucket_start(charge.start, "month")
    return {
        "BillingAccountId": str(charge.tenant_id),
        "BillingAccountName": charge.tenant or str(charge.tenant_id),
        "BillingAccountType": "Organization",
        "BillingCurrency": "USD",
        "BillingPeriodStart": month,
        "BillingPeriodEnd": bucket_end(month, "month"),
        "ChargePeriodStart": charge.start,
        "ChargePeriodEnd": charge.end,
        "InvoiceId": charge.invoice,
        "InvoiceIssuerName": PROVIDER,
        "ProviderName": PROVIDER,
        "PublisherName": PROVIDER,
        "ServiceCategory": CATEGORY,
        "ServiceName": SERVICE,
        "ServiceSubcategory": SUBCATEGORY,
    }


def _record(values: dict[str, Value]) -> Record:
    return tuple(values.get(column.name) for column in CHARGES)
