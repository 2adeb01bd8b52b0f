"""Usage of a customer without a gateway: one settled request."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text

from billing.metering.records import OpenRecord, Outcome, PriceVersion, UsageRecord
from billing.metering.settle_calls import settle_row
from core.db import Database
from core.ids import uuid7
from core.tokens import TokenUsage
from tests.integration.billing.support import MODEL, Customer, settle_json


async def settle_one(
    database: Database,
    customer: Customer,
    usage: TokenUsage,
    outcome: Outcome = Outcome.COMPLETED,
    *,
    admitted_ago_s: int = 1,
    model: str = MODEL,
    **changes: Any,
) -> UUID:
    """Settle one request at the price in force now; returns its id."""
    async with database.system() as connection:
        found = await connection.execute(
            text(
                "SELECT clock_timestamp() AS now, "
                "(SELECT id FROM price_versions WHERE model = :model AND effective @> clock_timestamp() "
                "AND (tenant_id = :tenant OR tenant_id IS NULL) ORDER BY tenant_id NULLS LAST LIMIT 1) AS price, "
                "(SELECT id FROM price_versions WHERE model = :model AND effective @> clock_timestamp() "
                "AND tenant_id IS NULL) AS list"
            ),
            {"model": model, "tenant": customer.tenant_id},
        )
        row = found.one()
        opened = OpenRecord(
            request_id=uuid7(),
            tenant_id=customer.tenant_id,
            project_id=customer.project_id,
            key_id=customer.key_id,
            model=model,
            tier="standard",
            region="test",
            price=PriceVersion(row.price, 0, 0, 0, 0),
            list_price=PriceVersion(row.list, 0, 0, 0, 0),
            admitted_at=row.now - timedelta(seconds=admitted_ago_s),
            replica_id="h/0",
            boot_id="b",
            simulated=False,
            stream=True,
        )
        facts = {"duration_us": 500_000, "queue_us": 1_000, "ttft_us": 200_000, **changes}
        record = UsageRecord(opened, outcome, usage, **facts)
        body = msgspec.json.encode([settle_row(record)._asdict()]).decode()
        result = await connection.scalar(text(settle_json(":body")), {"body": body})
    assert result == "settled"
    return opened.request_id
