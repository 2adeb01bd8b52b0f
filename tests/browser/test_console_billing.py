"""A customer at the console: buying credit, papers, terms, usage, requests, alerts; and who may do what."""

import asyncio
import csv
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import openpyxl
import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from fastapi import FastAPI
from playwright.async_api import Browser, Page, expect
from pydantic import SecretStr

from admin import accounts as admin_accounts
from admin import adjustments as admin_adjustments
from admin import prices as admin_prices
from admin import requests as admin_requests
from api.stripe_webhooks import router
from billing.notifications import alerts
from billing.notifications.notices import notify
from core.clock import SystemClock
from core.db import Database
from core.settings import Settings
from jobs import payments as payment_jobs
from jobs.work import deliver_notices
from tests.browser.conftest import Person
from tests.browser.seed import FINANCE, ME
from tests.browser.seed_billing import billing_seed
from tests.browser.seed_finance import MODEL
from tests.browser.site import Site, running_site
from tests.support.api_process import serving
from tests.support.approving import approve_all
from tests.support.services import Services
from tests.support.stripe_sim import FakeStripe, running


@pytest.fixture(scope="module")
def stripe() -> Iterator[FakeStripe]:
    """The local Stripe that this console talks to."""
    with running() as fake:
        yield fake


@pytest.fixture(scope="module")
def shop(services: Services, stripe: FakeStripe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A console over the seed of this file."""
    extra = {
        "STRIPE_API_KEY": stripe.api_key,
        "PENSTOCK_STRIPE_BASE_URL": stripe.url,
        "PENSTOCK_DATA_DIR": str(tmp_path_factory.mktemp("keys")),
    }
    with running_site(
        services,
        tmp_path_factory.mktemp("billing"),
        fill=billing_seed(stripe),
        suffix="billing",
        extra=extra,
    ) as site:
        yield site


async def _desk(shop: Site, browser: Browser, email: str) -> AsyncIterator[Person]:
    context = await browser.new_context(viewport={"width": 1280, "height": 860}, accept_downloads=True)
    made = Person(shop, context, await context.new_page())
    await made.sign_in(email)
    yield made
    await context.close()
    assert made.troubles == []


@pytest_asyncio.fixture(loop_scope="session")
async def owner(shop: Site, browser: Browser) -> AsyncIterator[Person]:
    """The owner of Northwind Robotics at a desk."""
    async for made in _desk(shop, browser, shop.northwind.owner):
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def viewer(shop: Site, browser: Browser) -> AsyncIterator[Person]:
    """Somebody of Northwind Robotics who may only read."""
    async for made in _desk(shop, browser, shop.northwind.viewer):
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def finance(shop: Site, browser: Browser) -> AsyncIterator[Person]:
    """Somebody of the platform's finance."""
    async for made in _desk(shop, browser, FINANCE):
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def database(shop: Site) -> AsyncIterator[Database]:
    """The console's own database."""
    opened = Database(shop.database_url)
    yield opened
    await opened.close()


async def _downloaded(page: Page, name: str) -> Path:
    """Where the file behind the first link called `name` was put."""
    async with page.expect_download() as wanted:
        await page.get_by_role("link", name=name, exact=True).first.click()
    download = await wanted.value
    return Path(await download.path())


async def test_an_owner_buys_credit_from_click_to_balance(
    owner: Person, stripe: FakeStripe, shop: Site, database: Database
) -> None:
    """Console, payment page, webhook, job, and back on the page, without a reload."""
    tenant_id = shop.northwind.tenant_id
    before = Decimal((await admin_accounts.get_account(database, ME, tenant_id=tenant_id)).balance_usd)
    settings = Settings(
        STRIPE_API_KEY=SecretStr(stripe.api_key),
        STRIPE_WEBHOOK_SECRET=SecretStr(stripe.webhook_secret),
        stripe_base_url=stripe.url,
    )
    app = FastAPI()
    app.include_router(router(database, settings, SystemClock()))
    async with serving(app) as receiver:
        stripe.send_webhooks(f"{receiver}/webhooks/stripe")
        await owner.open("/billing")
        await owner.page.get_by_role("button", name="Buy credit").click()
        dialog = owner.page.get_by_role("dialog")
        await dialog.get_by_label("Amount in US dollars").fill("1.00")
        await dialog.get_by_role("button", name="Go to payment").click()
        await expect(owner.page.get_by_role("alert")).to_contain_text("whole cents from $5")
        await dialog.get_by_label("Amount in US dollars").fill("$37.50")
        await dialog.get_by_role("button", name="Go to payment").click()
        await owner.page.get_by_role("button", name="Pay $37.50").click()
        await expect(owner.page.get_by_text("Waiting for the payment of $37.50")).to_be_visible()
        await asyncio.to_thread(stripe.flush)
        assert await payment_jobs.apply_events(database, settings) > 0
    await expect(owner.page.get_by_text("$37.50 of credit has arrived")).to_be_visible()
    balance = owner.page.locator(".stat", has_text="Balance").locator(".value")
    await expect(balance).to_have_attribute("title", f"{before + Decimal('37.5')} USD")
    lots = owner.page.locator("[aria-label='Credits'] tbody tr", has_text="Purchased")
    await expect(lots.filter(has_text="$37.50").first).to_be_visible()
    await owner.open("/billing?tab=payments")
    row = owner.page.locator("[aria-label='Purchases'] tbody tr", has_text="$37.50")
    await expect(row).to_contain_text("Succeeded")


async def test_a_declined_card_leaves_everything_as_it_was(
    owner: Person, shop: Site, database: Database
) -> None:
    tenant_id = shop.northwind.tenant_id
    before = (await admin_accounts.get_account(database, ME, tenant_id=tenant_id)).balance_usd
    owner.expected_status = {402}
    await owner.open("/billing")
    await owner.page.get_by_role("button", name="Buy credit").click()
    await owner.page.get_by_role("dialog").get_by_label("Amount in US dollars").fill("20")
    await owner.page.get_by_role("button", name="Go to payment").click()
    await owner.page.get_by_label("Card").select_option("pm_card_chargeDeclined")
    await owner.page.get_by_role("button", name="Pay $20.00").click()
    await expect(owner.page.get_by_role("alert")).to_contain_text("declined")
    await owner.page.get_by_role("button", name="Cancel").click()
    await expect(owner.page.get_by_text("Waiting for the payment of $20.00")).to_be_visible()
    await expect(owner.page.get_by_role("link", name="Back to the payment page")).to_be_visible()
    assert (await admin_accounts.get_account(database, ME, tenant_id=tenant_id)).balance_usd == before


async def test_automatic_top_up_is_set_up_and_switched_off(owner: Person) -> None:
    await owner.open("/billing")
    card = owner.page.locator(".card", has=owner.page.get_by_role("heading", name="Automatic top-up"))
    await card.get_by_role("button", name="Set up").click()
    dialog = owner.page.get_by_role("dialog")
    await dialog.get_by_label("When less is left than").fill("twelve")
    await dialog.get_by_role("button", name="Switch on").click()
    await expect(dialog).to_contain_text("An amount of dollars")
    await dialog.get_by_label("When less is left than").fill("12.5")
    await dialog.get_by_label("Buy", exact=True).fill("40")
    await dialog.get_by_label("At most in a month").fill("10")
    await dialog.get_by_role("button", name="Switch on").click()
    await expect(owner.page.get_by_role("alert")).to_contain_text("the monthly cap must be at least")
    await dialog.get_by_label("At most in a month").fill("120")
    await dialog.get_by_role("button", name="Switch on").click()
    await expect(card).to_contain_text("$120.00")
    await expect(card.locator(".badge")).to_have_text("On")
    await card.get_by_role("button", name="Switch off").click()
    await owner.page.get_by_role("dialog").get_by_role("button", name="Switch off").click()
    await expect(card.locator(".badge")).to_have_text("Off")


async def test_who_may_only_read_finds_nothing_to_press(viewer: Person) -> None:
    await viewer.open("/billing")
    await expect(viewer.page.get_by_text("Saved card", exact=True)).to_be_visible()
    for name in ("Buy credit", "Set up", "Set tax id", "Set budget"):
        await expect(viewer.page.get_by_role("button", name=name)).to_have_count(0)


async def test_papers_are_listed_open_and_come_signed(owner: Person) -> None:
    await owner.open("/billing?tab=documents")
    invoices = owner.page.locator("[aria-label='Invoices'] tbody tr")
    await expect(invoices).to_have_count(1)
    statements = owner.page.locator("[aria-label='Statements'] tbody tr")
    await expect(statements.first).to_contain_text("Draft")
    signed = json.loads((await _downloaded(owner.page, "JSON")).read_text())
    assert signed["body"]["type"] == "penstock.statement"
    assert (await _downloaded(owner.page, "PDF")).read_bytes().startswith(b"%PDF-")
    await invoices.get_by_role("link").click()
    await expect(owner.page.locator("h1")).to_contain_text("Invoice")


async def test_terms_are_shown_and_no_customer_changes_them(owner: Person) -> None:
    await owner.open("/billing?tab=terms")
    page = owner.page
    await expect(page.get_by_text("12.5% off list prices")).to_be_visible()
    await expect(page.get_by_text("95% of first tokens within 800 ms")).to_be_visible()
    await expect(page.get_by_role("button", name="New contract")).to_have_count(0)


async def test_a_request_shows_what_it_cost_and_why_with_a_receipt(owner: Person, shop: Site) -> None:
    await owner.open("/requests?days=400")
    rows = owner.page.locator("[aria-label='Requests'] tbody tr")
    await expect(rows).to_have_count(16)
    await owner.open("/requests?days=1")
    await expect(rows).to_have_count(5)
    await rows.first.get_by_role("link").click()
    await owner.ready()
    table = owner.page.locator("[aria-label='Cost by class of token']")
    lines = table.locator("tbody tr:not(.total)")
    exact = [
        Decimal(
            (await lines.nth(i).locator("td").nth(3).locator("span").get_attribute("title") or "").split()[0]
        )
        for i in range(await lines.count())
    ]
    total = await table.locator("tr.total span").get_attribute("title")
    assert total == f"{sum(exact).normalize():f} USD"
    await expect(owner.page.get_by_text("It ran to its end")).to_be_visible()
    await expect(owner.page.get_by_role("button", name="Adjust")).to_have_count(0)
    await expect(owner.page.get_by_text("Replica")).to_have_count(0)
    receipt = json.loads((await _downloaded(owner.page, "Signed receipt")).read_text())
    assert f"{receipt['body']['cost_usd']} USD" == total
    assert receipt["body"]["tenant_id"] == str(shop.northwind.tenant_id)


@pytest.mark.promise(23)
async def test_nobody_sees_another_organisations_request(
    owner: Person, shop: Site, database: Database
) -> None:
    other = shop.customers["Lumen Health"].tenant_id
    found = await admin_requests.list_requests(
        database, ME, tenant_id=other, since=datetime(2020, 1, 1, tzinfo=UTC), limit=1
    )
    owner.expected_status = {404}
    for path in (
        f"/requests/{found[0].request_id}",
        f"/requests/{found[0].request_id}/receipt?tenant={other}",
    ):
        answer = await owner.page.goto(shop.url + path)
        assert answer is not None
        assert answer.status == 404, path
    await owner.open(f"/requests?days=400&tenant={other}")
    await expect(owner.page.locator("[aria-label='Requests'] tbody tr")).to_have_count(16)


async def test_finance_adjusts_a_request(finance: Person, shop: Site, database: Database) -> None:
    tenant_id = shop.northwind.tenant_id
    await finance.open(f"/requests?tenant={tenant_id}&days=1&outcome=completed")
    await finance.page.locator("[aria-label='Requests'] tbody tr").first.get_by_role("link").first.click()
    await finance.ready()
    await expect(finance.page.get_by_text("Replica")).to_be_visible()
    await finance.page.get_by_role("button", name="Adjust").click()
    dialog = finance.page.get_by_role("dialog")
    await dialog.get_by_label("Amount in US dollars").fill("0.5")
    await dialog.get_by_label("Reason").fill("the answer was cut")
    await dialog.get_by_role("button", name="Ask for adjustment").click()
    await expect(finance.page.get_by_text("$0.50 is booked as an adjustment.")).to_be_visible()
    made = (await admin_adjustments.list_adjustments(database, ME, tenant_id=tenant_id))[0]
    assert (made.amount_usd, made.reason, made.created_by) == ("0.50", "the answer was cut", FINANCE)


async def test_a_budget_is_watched_and_somebody_is_told(
    owner: Person, shop: Site, database: Database
) -> None:
    """A project's budget that is passed already: set, evaluated, and the notice is on the page."""
    await owner.open("/alerts")
    page = owner.page
    await expect(
        page.locator("[aria-label='Budgets and marks'] tbody tr", has_text="low balance")
    ).to_contain_text("$15.00")
    await page.get_by_role("button", name="New budget").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("US dollars a month").fill("0.20")
    await dialog.get_by_label("Told at, in percent").fill("fifty")
    await dialog.get_by_role("button", name="Watch it").click()
    await expect(dialog).to_contain_text("Percentages with commas")
    await dialog.get_by_label("Told at, in percent").fill("50, 100")
    await dialog.get_by_role("button", name="Watch it").click()
    row = page.locator("[aria-label='Budgets and marks'] tbody tr", has_text="budget of a project")
    await expect(row).to_contain_text("50%, 100%")

    await page.get_by_role("button", name="Add", exact=True).click()
    await dialog.get_by_label("Address").fill("billing@northwind.example")
    await dialog.get_by_role("button", name="Add").click()
    told = page.locator("[aria-label='Who is told'] tbody tr")
    await expect(told).to_contain_text("billing@northwind.example")
    assert await alerts.evaluate(database) > 0
    assert await deliver_notices(database, Settings()) > 0
    await owner.open("/alerts")
    notices = page.locator("[aria-label='Notices'] tbody tr")
    await expect(notices.filter(has_text="100").first).to_be_visible()
    await notices.first.get_by_role("button", name="Read").click()
    await expect(dialog).to_contain_text("E-mail to billing@northwind.example: Kept: no mail server")
    await dialog.get_by_role("button", name="Close").click()
    await row.get_by_role("button", name="Remove").click()
    await dialog.get_by_role("button", name="Remove").click()
    await expect(row).to_have_count(0)


async def test_a_webhook_on_a_private_address_is_refused_and_a_secret_is_shown_once(owner: Person) -> None:
    await owner.open("/alerts")
    page, dialog = owner.page, owner.page.get_by_role("dialog")
    await page.get_by_role("button", name="Add", exact=True).click()
    await dialog.get_by_label("How").click()
    await page.get_by_role("option", name="Webhook").click()
    await dialog.get_by_label("Address").fill("https://127.0.0.1/hook")
    await dialog.get_by_role("button", name="Add").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    await dialog.get_by_label("Address").fill("https://hooks.example.com/penstock")
    await dialog.get_by_role("button", name="Add").click()
    secret = await page.locator(".secret code").inner_text()
    assert secret.startswith("whsec_")
    await page.get_by_role("button", name="I have stored it").click()
    await owner.open("/alerts")
    await expect(page.get_by_text("https://hooks.example.com/penstock")).to_be_visible()
    assert secret not in await page.content()
    row = page.locator("[aria-label='Who is told'] tbody tr", has_text="hooks.example.com")
    await row.get_by_role("button", name="Remove").click()
    await dialog.get_by_role("button", name="Remove").click()
    await expect(row).to_have_count(0)


async def test_a_customer_never_sees_the_platforms_notices(
    viewer: Person, finance: Person, database: Database
) -> None:
    async with database.system() as connection:
        await notify(
            connection,
            tenant_id=None,
            kind="test",
            subject="Our own trouble",
            body="Not for customers.",
            facts={},
        )
    await finance.open("/alerts?tab=notices")
    await expect(finance.page.get_by_text("Our own trouble")).to_be_visible()
    await viewer.open("/alerts?tab=notices")
    await expect(viewer.page.get_by_role("heading", name="Notices")).to_be_visible()
    await expect(viewer.page.get_by_text("Our own trouble")).to_have_count(0)
    await expect(viewer.page.get_by_role("button", name="New budget")).to_have_count(0)
    await expect(viewer.page.get_by_role("button", name="Add", exact=True)).to_have_count(0)


async def test_usage_is_compared_and_equals_the_ledger(finance: Person) -> None:
    await finance.open("/usage?period=30d&by=tenant,model&compare=previous")
    page = finance.page
    await expect(page.get_by_text("Cost and adjustments are the ledger's revenue")).to_be_visible()
    row = page.locator("[aria-label='Comparison'] tbody tr", has_text="Northwind Robotics").first
    await expect(row).to_contain_text("was 7")
    await expect(row).to_contain_text("−28.57%")
    await expect(page.locator("[aria-label='Usage report']")).to_contain_text("GPU per M")
    for by in ("key,hour", "tier,region,month", "price_version,simulated,day"):
        await finance.open(f"/usage?period=30d&by={by}")
        await expect(page.locator("[aria-label='Usage report'] tr.total")).to_be_visible()
    await finance.open("/usage?period=custom&from=2020-01-01&to=2026-01-01")
    await expect(page.get_by_text("At most three years at once")).to_be_visible()


async def test_files_of_usage_open_and_add_up(viewer: Person, shop: Site, database: Database) -> None:
    await viewer.open("/usage?period=30d&by=model,day&compare=previous")
    await expect(viewer.page.get_by_text("GPU")).to_have_count(0)
    await expect(viewer.page.get_by_text("Margin")).to_have_count(0)
    with (await _downloaded(viewer.page, "Excel")).open("rb") as file:
        sheet = openpyxl.load_workbook(file).active
    names, *lines = [[value.value for value in row] for row in sheet.iter_rows()]
    parquet = pq.read_table(await _downloaded(viewer.page, "Parquet"))
    paid = sum(parquet.column("cost_usd").to_pylist(), Decimal(0))
    assert sum(line[names.index("requests")] for line in lines) == 5
    focus = list(csv.DictReader((await _downloaded(viewer.page, "FOCUS")).read_text("utf-8").splitlines()))
    used = [line for line in focus if line["ChargeCategory"] == "Usage"]
    assert sum(Decimal(line["BilledCost"]) for line in used) == paid
    account = await admin_accounts.get_account(database, ME, tenant_id=shop.northwind.tenant_id)
    assert paid == Decimal(account.spent_this_month_usd)
    assert not any(name.startswith(("gpu_", "margin_")) for name in parquet.column_names)


async def test_a_scheduled_price_is_withdrawn_and_a_contract_price_ends(
    finance: Person, shop: Site, database: Database
) -> None:
    tenant_id = shop.customers["Lumen Health"].tenant_id
    prices = {"model": MODEL, "input": "0.9", "output": "8"}
    await admin_prices.set_price(database, ME, tenant_id=tenant_id, **prices)
    later = datetime(2099, 1, 1, tzinfo=UTC)
    await admin_prices.set_price(database, ME, effective_from=later, **prices)
    await finance.open("/models")
    page, dialog = finance.page, finance.page.get_by_role("dialog")
    rows = page.locator("[aria-label='Prices'] tbody tr")
    await rows.filter(has_text="1 Jan 2099").filter(has_text="List price").get_by_role("button").click()
    await dialog.get_by_label("Reason").fill("not yet")
    await dialog.get_by_role("button", name="Withdraw").click()
    await approve_waiting(finance, database)
    await finance.open("/models")
    await expect(rows.filter(has_text="Scheduled").filter(has_text="List price")).to_have_count(0)
    row = rows.filter(has_text="Lumen Health")
    await row.get_by_role("button", name="End").click()
    await dialog.get_by_label("Reason").fill("the trial is over")
    await dialog.get_by_role("button", name="End price").click()
    await approve_waiting(finance, database)
    await finance.open("/models")
    await expect(row).to_have_count(0)
    await page.get_by_text("Show ended prices").click()
    await expect(row).to_contain_text("Ended")
    await expect(page.get_by_role("link", name="Re-rate a past month")).to_be_visible()


async def approve_waiting(finance: Person, database: Database) -> None:
    """See that the act waits, and approve it as a second person."""
    await expect(finance.page.get_by_role("status").filter(has_text="another person").last).to_be_visible()
    assert len(await approve_all(database)) == 1


async def test_finance_makes_and_ends_a_contract(finance: Person, shop: Site, database: Database) -> None:
    tenant_id = shop.customers["Lumen Health"].tenant_id
    await finance.open(f"/tenants/{tenant_id}?tab=money")
    page, dialog = finance.page, finance.page.get_by_role("dialog")
    await page.get_by_role("button", name="New contract").click()
    await dialog.get_by_label("Discount in percent").fill("a lot")
    await dialog.get_by_label("Reason").fill("renewal")
    await dialog.get_by_role("button", name="Save contract").click()
    await expect(dialog).to_contain_text("A percentage such as 15")
    await dialog.get_by_label("Discount in percent").fill("7.5")
    await dialog.get_by_label("Committed a month").fill("1,000")
    await dialog.get_by_role("button", name="Save contract").click()
    await approve_waiting(finance, database)
    await finance.open(f"/tenants/{tenant_id}?tab=money")
    await expect(page.get_by_text("7.5% off list prices")).to_be_visible()
    await expect(page.get_by_text("$1,000.00").first).to_be_visible()
    await page.locator("[aria-label='Contracts'] tbody tr").get_by_role("button", name="End").click()
    await expect(dialog).to_contain_text("of its committed spend remains due for its part of the month")
    await dialog.get_by_label("Reason").fill("they left")
    await dialog.get_by_role("button", name="End contract").click()
    await approve_waiting(finance, database)
    await finance.open(f"/tenants/{tenant_id}?tab=money")
    await expect(page.get_by_text("No contract in force")).to_be_visible()


async def test_the_new_pages_fit_a_phone(shop: Site, browser: Browser) -> None:
    context = await browser.new_context(viewport={"width": 400, "height": 800}, color_scheme="dark")
    phone = Person(shop, context, await context.new_page())
    tenant = f"/tenants/{shop.northwind.tenant_id}?tab="
    tabs = ("credit", "documents", "payments", "terms")
    for email, paths in (
        (shop.northwind.owner, [*(f"/billing?tab={tab}" for tab in tabs), "/alerts", "/requests?days=400"]),
        (
            FINANCE,
            [f"{tenant}money", f"{tenant}papers", f"{tenant}alerts", "/alerts", "/usage?compare=previous"],
        ),
    ):
        await phone.sign_in(email)
        for path in paths:
            await phone.open(path)
            await expect(phone.page.locator("h1")).to_be_visible()
            assert await phone.overflow() <= 0, path
    await phone.open("/requests?days=400")
    await phone.page.locator("[aria-label='Requests'] tbody tr").first.get_by_role("link").first.click()
    await expect(phone.page.get_by_role("heading", name="Why")).to_be_visible()
    assert await phone.overflow() <= 0
    await context.close()
    assert phone.troubles == []
