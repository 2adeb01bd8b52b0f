"""What finance does in the play: prices, contracts, credit, hosts and their invoices, exports, corrections."""

from datetime import date, datetime
from typing import Any

import pytest

from admin import contracts as admin_contracts
from admin import credits as admin_credits
from admin import economics as admin_economics
from admin import exports as admin_exports
from admin import payments as admin_payments
from admin import prices as admin_prices
from admin import reconcile as admin_reconcile
from billing.economics.provider_invoices import InvoiceIn, InvoiceLineIn
from tests.support.platform_play.prices import Rates, in_words
from tests.support.platform_play.stage import ANN, PLATFORM, Stage
from tests.support.platform_play.timeline import utc

LISTED: dict[str, Rates] = {
    "delta-moe": (1_500_011, 150_003, 6_000_029, 6_000_029),
    "lake-70b": (3_000_017, 300_007, 9_000_043, 11_000_047),
    "river-7b": (600_007, 60_001, 2_400_011, 2_400_011),
}
CUSTOMERS: dict[str, Any] = {
    "acorn": "prepaid", "birch": "prepaid", "cedar": "prepaid", "dogwood": "prepaid", "hazel": "prepaid",
    "elm": "postpaid", "fir": "postpaid", "ginkgo": "postpaid",
    "iris": "postpaid",
}  # fmt: skip
ELM_BPS = 1500
COMMITTED = {"iris": "30"}
"""Dollars a month by customer; iris uses nothing and owes all of it."""
ELM_SLA = {"metric": "ttft", "percentile": 95, "threshold": 800, "credit_percent": 10}


async def list_price(play: Stage, model: str, rates: Rates, since: datetime | None) -> None:
    """A list price from `since` on (None = now)."""
    view = await admin_prices.set_price(
        play.database, PLATFORM, model=model, effective_from=since, **in_words(rates)
    )
    play.book.listed.setdefault(model, []).append((datetime.fromisoformat(view.effective_from), rates))


async def own_price(play: Stage, name: str, model: str, rates: Rates, since: datetime | None) -> None:
    """A price of one customer."""
    view = await admin_prices.set_price(
        play.database,
        PLATFORM,
        model=model,
        tenant_id=play.people[name].tenant_id,
        effective_from=since,
        **in_words(rates),
    )
    since = datetime.fromisoformat(view.effective_from)
    play.book.own.setdefault((name, model), []).append((since, rates))


async def begin(play: Stage) -> None:
    """Prices, customers, contracts and exports, before the first month."""
    for model, rates in LISTED.items():
        await list_price(play, model, rates, None)
    for name, mode in CUSTOMERS.items():
        await play.join(name, mode)
    await own_price(play, "ginkgo", "lake-70b", (2_500_013, 250_001, 8_000_033, 8_000_033), None)
    january = utc(2027, 1, 1)
    for name, discount, commit, days, sla, automatic in (
        ("elm", ELM_BPS, None, 14, ELM_SLA, True),
        ("fir", 0, None, 7, None, True),
        ("ginkgo", 0, None, 21, None, False),
        ("iris", 0, COMMITTED["iris"], 14, None, False),
    ):  # fmt: skip
        await admin_contracts.add_contract(
            play.database,
            PLATFORM,
            tenant_id=play.people[name].tenant_id,
            effective_from=january,
            discount_bps=discount,
            commit_monthly_usd=commit,
            payment_days=days,
            automatic_payment=automatic,
            sla=sla,
            reason="2027",
        )
    play.book.discounts["elm"] = (january, ELM_BPS)
    for dataset, format in (
        ("report", "csv"), ("report", "parquet"), ("journal", "parquet"), ("invoices", "csv"),
        ("focus_charges", "csv"), ("focus_gpu", "parquet"),
    ):  # fmt: skip
        await admin_exports.create_export(
            play.database,
            ANN,
            name=f"{dataset}-{format}",
            dataset=dataset,
            format=format,
            cadence="monthly",
            destination="finance",
            starts_at=january,
        )


async def give(
    play: Stage, name: str, usd: int, expires: datetime | None, *, kind: Any = "promotional"
) -> None:
    """Credit that expires."""
    await admin_credits.grant_credit(
        play.database,
        PLATFORM,
        tenant_id=play.people[name].tenant_id,
        amount_usd=str(usd),
        reason="welcome",
        kind=kind,
        expires_at=expires,
    )
    play.account(name).add_lot(f"{kind}-{usd}", kind, usd * 10**12, expires)


async def hosts_ran(play: Stage, month: date) -> None:
    """A GPU host worked for some hours of the month, as agents' heartbeats would have booked it."""
    await play.rows(
        "INSERT INTO hosts (host_id, host_kind, region, gpus) VALUES ('host-a', 'gpu-h200x8-1128gb', 'test', 8) "
        "ON CONFLICT (host_id) DO UPDATE SET gpus = 8 RETURNING host_id"
    )
    for day in range(1, 28, 2):
        hour = datetime(month.year, month.month, day, 9, tzinfo=play.time.now().tzinfo)
        for state, seconds in (("serving", 3000), ("warm_idle", 600)):
            facts = {"hour": hour, "state": state, "seconds": seconds}
            await play.rows(
                "INSERT INTO host_seconds VALUES ('host-a', 'b', :hour, :state, :seconds) RETURNING hour",
                **facts,
            )
            await play.rows(
                "INSERT INTO model_seconds VALUES ('host-a', 'b', :hour, 'river-7b', :state, :seconds) "
                "RETURNING hour",
                **facts,
            )


async def enter_gpu_invoice(play: Stage, month: date) -> None:
    """The provider's invoice of the month."""
    line = InvoiceLineIn("500.64", "gpu-h200x8-1128gb", "droplet", "14")
    name = f"{month:%Y-%m}"
    await admin_economics.enter_provider_invoice(
        play.database, ANN, invoice=InvoiceIn("DigitalOcean", f"DO-{name}", name, "500.64", [line])
    )


async def auto_top_up(play: Stage, name: str, threshold_usd: int, usd: int) -> None:
    """Buy credit by the saved card whenever little is left."""
    await admin_payments.set_auto_topup(
        play.database,
        ANN,
        tenant_id=play.people[name].tenant_id,
        enabled=True,
        threshold_usd=str(threshold_usd),
        amount_usd=str(usd),
        monthly_cap_usd="1000",
    )
    play.topups[name] = (threshold_usd * 10**12, usd * 100)


async def accept_engines(play: Stage) -> None:
    """A person looks at what is unexplained and takes it as it is."""
    for row in await play.rows("SELECT DISTINCT boot_id FROM reconciliations WHERE unexplained <> 0"):
        await admin_reconcile.accept(play.database, ANN, boot_id=row.boot_id, reason="host-c is lost")


async def refused(play: Stage, name: str, error: type[Exception]) -> None:
    """A request of that customer is not admitted."""
    person = play.people[name]
    drawn = play.traffic.draw(person, play.time.now())
    assert drawn is not None
    person.account.held -= drawn.hold
    async with play.process() as living:
        with pytest.raises(error):
            await living.holds.place(drawn.asked)
