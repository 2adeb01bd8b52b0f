"""The close of a month in the play: what is red and why, the invoices, and what the closed month says from then on."""

import hashlib
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from admin import decisions
from admin import exports as admin_exports
from admin import ledger as admin_ledger
from admin import payments as admin_payments
from admin import periods as admin_periods
from billing.ledger.months import bounds, final_at
from billing.payments.stripe_gateway import open_gateway
from billing.reports.usage_report import usage_report
from billing.usage.archive import archive_dir, parquet_path
from billing.usage.query import ReportQuery
from core.errors import Conflict, WaitsForApproval
from core.money import usd_to_pico
from tests.support.platform_play.finance import COMMITTED, enter_gpu_invoice, hosts_ran
from tests.support.platform_play.stage import ANN, BOB, Stage

DOWNLOADS = (("report", "csv"), ("journal", "parquet"), ("invoices", "csv"), ("focus_charges", "csv"))


async def red(play: Stage, month: date) -> set[str]:
    """Closing is refused; the names of what is red."""
    with pytest.raises(Conflict) as refused:
        await admin_periods.close_period(play.database, ANN, month=month)
    assert refused.value.details is not None
    return {one["name"] for one in refused.value.details["checks"]}


async def invoice(play: Stage, month: date) -> None:
    """Nothing can reach the month any more: jobs measure service levels, make the invoices, send them, charge cards."""
    assert "month_over" in await red(play, month)
    await hosts_ran(play, month)
    await play.time.go(final_at(month) + timedelta(minutes=30))
    elm = play.account("elm")
    values = sorted(elm_answers(play, month))
    rank = max(1, -(-95 * len(values) // 100))
    if values and values[rank - 1] > 800_000:
        credit = -(-elm.cost(month) * 10 // 100)
        elm.book("sla_credits", "receivable", credit)
        elm.moves[month].append(("sla", -credit))
    for account in play.accounts():
        account.bill(month, usd_to_pico(COMMITTED[account.name]) if account.name in COMMITTED else None)
    for name in play.paying:
        play.account(name).pay(month)
    await play.jobs()


def elm_answers(play: Stage, month: date) -> list[int]:
    """Microseconds to the first token of elm's answered requests that ended in the month."""
    return play.answers.get(month, [])


async def close(play: Stage, month: date) -> dict[str, str]:
    """Stripe is compared and the month frozen, both twice; returns what the closed month says, as digests."""
    assert "gpu_invoice" in await red(play, month)
    await enter_gpu_invoice(play, month)
    async with open_gateway(play.settings) as gateway:
        for _ in range(2):
            compared = await admin_payments.compare(play.database, ANN, gateway, month=month)
            assert compared.problems == []
    with pytest.raises(WaitsForApproval) as waits:
        await admin_periods.close_period(play.database, ANN, month=month)
    approval_id = UUID(waits.value.details["approval_id"])
    await decisions.decide(play.database, BOB, approval_id=approval_id, approve=True)
    closed = await admin_periods.close_period(play.database, ANN, month=month)
    assert closed.ok
    assert all(check.ok for check in closed.checks)
    await play.time.later(hours=2)  # exports look at a young period once an hour
    await play.jobs()
    return await told(play, month)


async def told(play: Stage, month: date) -> dict[str, str]:
    """A SHA-256 of everything that a month says: reports, exports, journal, invoices, statements, archive."""
    start, end = bounds(month)
    found: dict[str, bytes] = {}
    async with play.database.snapshot() as connection:
        for by in (("tenant", "model"), ("tenant", "price_version", "day"), ("model", "hour")):
            rows = await usage_report(connection, ReportQuery(start, end, by))
            found[f"report by {','.join(by)}"] = msgspec.json.encode(rows)
    for dataset, format in DOWNLOADS:
        by = ("tenant", "model") if dataset == "report" else ()
        made = await admin_exports.download(
            play.database, ANN, dataset=dataset, format=format, start=start, end=end, group_by=by or ("",)
        )  # type: ignore[arg-type]
        found[f"{dataset}.{format}"] = b"".join(made.chunks)
    trial = await admin_ledger.trial_balance(play.database, ANN, start=start, end=end)
    assert trial.balanced
    found["trial balance"] = msgspec.json.encode(trial)
    journal = await admin_ledger.journal_lines(play.database, ANN, start=start, end=end)
    found["journal"] = msgspec.json.encode(journal)
    found |= await _rows(play, month, start, end)
    found["archive"] = parquet_path(archive_dir(play.settings), month).read_bytes()
    return {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}


async def _rows(play: Stage, month: date, start: datetime, end: datetime) -> dict[str, bytes]:
    """Rows of the month as they lie there."""
    queries: dict[str, tuple[str, dict[str, Any]]] = {
        "usage": (
            "SELECT u::text FROM usage u WHERE ended_at >= :start AND ended_at < :end ORDER BY request_id",
            {"start": start, "end": end},
        ),
        "transfers": (
            "SELECT t::text FROM ledger_transfers t WHERE effective_at >= :start AND effective_at < :end ORDER BY id",
            {"start": start, "end": end},
        ),
        "invoice lines": (
            "SELECT l::text FROM invoice_lines l JOIN invoices i ON i.id = l.invoice_id WHERE i.month = :month "
            "ORDER BY l.id",
            {"month": month},
        ),
        "statements": (
            "SELECT md5(document::text) || md5(pdf::text) FROM statements "
            "WHERE month = :month ORDER BY tenant_id, revision",
            {"month": month},
        ),
    }
    return {
        name: "\n".join(row[0] for row in await play.rows(sql, **values)).encode()
        for name, (sql, values) in queries.items()
    }
