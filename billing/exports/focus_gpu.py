"""The platform's GPU cost in FOCUS 1.2, by UTC day, organisation and model, with unused time in separate rows.

The sum of BilledCost is the cost of all host seconds at their dated prices. There are no unit prices, because a share
of a host-hour has none.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from decimal import Decimal

from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.gpu_cost import GpuUse, host_hours
from billing.exports.columns import Record, Value
from billing.exports.datasets import Dataset, DatasetQuery, usd
from billing.exports.focus_columns import GPU, VERSION
from billing.reports.usage_report import usage_report
from billing.usage.query import ReportQuery, ReportRow, bucket_end, bucket_start, check_period
from core.money import usd_to_pico

ISSUER = "GPU hosts"
_ACCOUNT = "penstock"
_UNIT = "GPU-Hours"
_MICRO_PER_HOUR = 3_600_000_000


def focus_gpu(connection: AsyncConnection, query: DatasetQuery) -> Dataset:
    """GPU cost of `query`; needs a session that sees all tenants. Raises InvalidRequest for an invalid period."""
    check_period(query.start, query.end)
    return Dataset("focus_gpu", VERSION, GPU, _blocks(connection, query))


async def _blocks(connection: AsyncConnection, query: DatasetQuery) -> AsyncIterator[Sequence[Record]]:
    start = query.start
    while start < query.end:
        end = min(query.end, bucket_end(bucket_start(start, "day"), "day"))
        asked = ReportQuery(start, end, ("tenant", "model"), query.tenant_id)
        rows = await usage_report(connection, asked)
        unused = await _unused(connection, start, end) if query.tenant_id is None else {}
        block: list[Record] = []
        for row in rows:
            if row.tenant_id is None:
                block += _idle(row, unused.get(row.model or "", {}), start, end)
            elif _gpu_use(row).gpu_us or _gpu_use(row).cost:
                block.append(_row(row, _gpu_use(row), "serving", start, end))
        yield block
        start = end


async def _unused(
    connection: AsyncConnection, start: datetime, end: datetime
) -> dict[str, dict[str, GpuUse]]:
    """Unused GPU time by model (empty = no model) and state."""
    found: dict[str, dict[str, GpuUse]] = defaultdict(lambda: defaultdict(GpuUse))
    for use in (await host_hours(connection, start, end)).values():
        for (model, state), part in use.unused.items():
            found[model][state].add(part.cost, part.gpu_us)
    return found


def _idle(row: ReportRow, states: dict[str, GpuUse], start: datetime, end: datetime) -> list[Record]:
    """The records of a line of unused time by state; the rest was serving time without requests."""
    rest = _gpu_use(row)
    found = []
    for state, part in sorted(states.items()):
        rest.add(-part.cost, -part.gpu_us)
        if part.cost or part.gpu_us:
            found.append(_row(row, part, state, start, end))
    if rest.cost or rest.gpu_us:
        found.append(_row(row, rest, "serving without requests", start, end))
    return found


def _gpu_use(row: ReportRow) -> GpuUse:
    return GpuUse(usd_to_pico(row.gpu_cost_usd or "0"), int((row.gpu_seconds or "0").replace(".", "")))


def _row(row: ReportRow, use: GpuUse, state: str, start: datetime, end: datetime) -> Record:
    month = bucket_start(start, "month")
    cost = usd(use.cost)
    hours = _hours(use.gpu_us)
    idle = row.tenant_id is None
    model = row.model or "no model"
    values: dict[str, Value] = {
        "BilledCost": cost,
        "EffectiveCost": cost,
        "ContractedCost": cost,
        "ListCost": cost,
        "BillingAccountId": _ACCOUNT,
        "BillingAccountName": "Penstock",
        "BillingAccountType": "Platform",
        "BillingCurrency": "USD",
        "BillingPeriodStart": month,
        "BillingPeriodEnd": bucket_end(month, "month"),
        "ChargePeriodStart": start,
        "ChargePeriodEnd": end,
        "ChargeCategory": "Usage",
        "ChargeDescription": f"GPU time of {model}: {'not used by requests, ' if idle else ''}{state}",
        "ChargeFrequency": "Usage-Based",
        "ConsumedQuantity": hours,
        "ConsumedUnit": _UNIT,
        "PricingCategory": "Standard",
        "PricingQuantity": hours,
        "PricingUnit": _UNIT,
        "InvoiceIssuerName": ISSUER,
        "ProviderName": ISSUER,
        "PublisherName": ISSUER,
        "ServiceCategory": "Compute",
        "ServiceName": "GPU Compute",
        "ServiceSubcategory": "Virtual Machines",
        "SubAccountId": row.tenant_id,
        "SubAccountName": None if idle else row.tenant or row.tenant_id,
        "SubAccountType": None if idle else "Organization",
        "x_Model": row.model or None,
        "x_State": state,
    }
    return tuple(values.get(column.name) for column in GPU)


def _hours(gpu_us: int) -> Decimal:
    """GPU-hours to 12 decimals, rounded half up."""
    scaled = (2 * gpu_us * 10**12 + _MICRO_PER_HOUR) // (2 * _MICRO_PER_HOUR)
    return Decimal(f"{scaled // 10**12}.{scaled % 10**12:012d}")
