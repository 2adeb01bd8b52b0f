"""Finance at work in the console: a month's close, invoices down to requests, margin, the books, reconciliation."""

import csv
import hashlib
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from admin import adjustments as admin_adjustments
from admin import audit as admin_audit
from admin import decisions
from admin import economics as admin_economics
from admin import exports as admin_exports
from admin import ledger as admin_ledger
from admin import users as admin_users
from admin.actor import Actor
from billing.ledger.months import bounds, parse_month
from billing.reports.margin import DIRECT
from console.format import money, per_mtok
from core.db import Database
from tests.browser.conftest import Person
from tests.browser.seed import FINANCE, ME
from tests.browser.seed_finance import BOOT, SECOND, finance_seed, months
from tests.browser.site import Site, running_site
from tests.integration.billing.payments.support import gateway_to, send
from tests.support.approving import SECOND as APPROVER
from tests.support.services import Services
from tests.support.stripe_sim import FakeStripe, running

PAGES = (
    "/periods",
    "/periods?tab=invoices",
    "/periods?tab=stripe",
    "/periods?tab=changes",
    "/finance?tab=margin",
    "/finance?tab=provider",
    "/finance?tab=books",
    "/finance?tab=exports",
    "/reconciliation",
    f"/reconciliation?engine={BOOT}",
)


@pytest.fixture(scope="module")
def stripe() -> Iterator[FakeStripe]:
    """The local Stripe that this console talks to."""
    with running() as fake:
        yield fake


@pytest.fixture(scope="module")
def books(services: Services, stripe: FakeStripe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A console over finance's seed."""
    extra = {
        "STRIPE_API_KEY": stripe.api_key,
        "PENSTOCK_STRIPE_BASE_URL": stripe.url,
        "PENSTOCK_EXPORT_DIR": str(tmp_path_factory.mktemp("exports")),
    }
    with running_site(
        services,
        tmp_path_factory.mktemp("finance"),
        fill=finance_seed(stripe),
        suffix="finance",
        extra=extra,
    ) as site:
        yield site


@pytest_asyncio.fixture(loop_scope="session")
async def database(books: Site) -> AsyncIterator[Database]:
    """The database of that console, to look at what the pages did."""
    database = Database(books.database_url)
    yield database
    await database.close()


Enter = Callable[..., Awaitable[Person]]


@pytest_asyncio.fixture(loop_scope="session")
async def enter(books: Site, browser: Browser) -> AsyncIterator[Enter]:
    """Sign people in, each at a desk of their own."""
    made: list[Person] = []

    async def sign_in(email: str, width: int = 1280) -> Person:
        context = await browser.new_context(viewport={"width": width, "height": 860}, accept_downloads=True)
        person = Person(books, context, await context.new_page())
        made.append(person)
        await person.sign_in(email)
        return person

    yield sign_in
    for person in made:
        await person.context.close()
    for person in made:
        assert person.troubles == []


@pytest_asyncio.fixture(loop_scope="session")
async def finance(enter: Enter) -> Person:
    """Somebody of finance, signed in."""
    return await enter(FINANCE)


def month(back: int) -> str:
    """The name of the month `back` months ago."""
    return f"{months(datetime.now(UTC))[2 - back]:%Y-%m}"


def rows(person: Person, table: str) -> Locator:
    """The rows of the table of that name."""
    return person.page.locator(f'[aria-label="{table}"] tbody tr')


async def settled(person: Person) -> None:
    """Wait until every part of the page that is found out later stands there."""
    await expect(person.page.locator(".waiting")).to_have_count(0)


async def answer(person: Person, button: str, reason: str = "") -> None:
    """Agree to the question that a dialog asks."""
    dialog = person.page.get_by_role("dialog").last
    if reason:
        await dialog.get_by_label("Reason").fill(reason)
    await dialog.get_by_role("button", name=button).click()


async def test_a_month_is_closed_and_its_invoices_lead_to_requests(
    finance: Person, enter: Enter, database: Database, stripe: FakeStripe, books: Site
) -> None:
    page = finance.page
    await finance.open("/periods")
    await expect(page.get_by_role("heading", name=f"Close of {month(2)}")).to_be_visible()
    line = page.locator(".checklist li", has_text="The GPU invoice is entered")
    await expect(line.get_by_role("img", name="red")).to_be_visible()
    await expect(page.get_by_role("button", name="Close month")).to_be_disabled()

    await line.get_by_role("link", name="Enter invoice").click()
    await finance.ready()
    await _enter_invoice(finance)

    await finance.open("/periods")
    await settled(finance)
    await expect(line.get_by_role("img", name="green")).to_be_visible()
    await page.get_by_role("button", name="Make invoices").click()
    await answer(finance, "Make invoices")
    await expect(page.get_by_text("2 invoices made.")).to_be_visible()
    async with gateway_to(stripe) as gateway:
        assert await send(database, gateway) == 1

    await finance.open("/periods")
    await settled(finance)
    await expect(page.get_by_text("Every check is green")).to_be_visible()
    await page.get_by_role("button", name="Close month").click()
    await expect(page.get_by_role("dialog")).to_contain_text("cannot be opened again")
    await answer(finance, "Close month", "the books agree")
    await expect(page.get_by_role("status").filter(has_text="another person")).to_be_visible()
    [waiting] = await decisions.list_approvals(database, ME, kind="period.close")
    await decisions.decide(database, APPROVER, approval_id=waiting.id, approve=True)
    found = await admin_audit.list_audit(database, ME, action="period.close")
    (entry,) = [one for one in found if one.action == "period.close"]
    assert (entry.actor_label, entry.object_id, entry.reason) == (
        APPROVER.label,
        month(2),
        "the books agree",
    )

    number = await _follow_a_line(finance)
    await _is_its_owners_only(enter, books, number)


async def _enter_invoice(person: Person) -> None:
    """Fill the provider's invoice; a total that is not the sum of its parts is refused first."""
    page = person.page
    await page.get_by_role("button", name="Enter invoice").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Number").fill("DO-1009")
    await dialog.get_by_label("Total in US dollars").fill("3.00")
    await dialog.get_by_label("gpu-h100x8-640gb: US dollars").fill("2.90")
    await dialog.get_by_role("button", name="Save invoice").click()
    await expect(page.get_by_text("the lines add up to $2.9")).to_be_visible()
    await dialog.get_by_label("gpu-h100x8-640gb: US dollars").fill("3.00")
    await dialog.get_by_role("button", name="Save invoice").click()
    await expect(rows(person, "Provider's invoices")).to_contain_text("DO-1009")
    total = rows(person, "Variance").last
    await expect(total).to_contain_text("$2.80")  # accounted: 80 minutes at $2.10
    await expect(total).to_contain_text("$0.20")


async def _follow_a_line(person: Person) -> str:
    """From the list to an invoice, to a line, to its requests; returns the invoice's number."""
    page = person.page
    await person.open(f"/periods?tab=invoices&month={month(2)}")
    await expect(rows(person, "Invoices")).to_have_count(2)
    row = rows(person, "Invoices").filter(has_text="Lumen Health")
    number = await row.get_by_role("link").inner_text()
    await row.get_by_role("link").click()
    await expect(page.get_by_role("heading", name=f"Invoice {number}")).to_be_visible()
    await person.ready()
    line = rows(person, "Lines").filter(has_text="output")
    exact = await line.locator(".mono").inner_text()
    await line.get_by_role("button", name="Requests").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text(f"all 4 requests: they add up to ${exact}")
    await expect(dialog.locator("tbody tr")).to_have_count(4)
    costs = await dialog.locator("tbody tr td:last-child span").evaluate_all(
        "all => all.map(one => one.title)"
    )
    assert sum(Decimal(cost.removesuffix(" USD")) for cost in costs) == Decimal(exact)
    return number


async def _is_its_owners_only(enter: Enter, books: Site, number: str) -> None:
    """The customer reads its invoice without acts and Stripe's ids; another one finds nothing."""
    owner = await enter(books.customers["Lumen Health"].owner)
    await owner.open(f"/invoices/{number}")
    await expect(owner.page.get_by_role("heading", name=f"Invoice {number}")).to_be_visible()
    for hidden in ("At Stripe", "Void", "Write off"):
        await expect(owner.page.get_by_text(hidden)).to_have_count(0)
    stranger = await enter(books.northwind.owner)
    stranger.expected_status = {403, 404}
    assert (await stranger.open(f"/invoices/{number}")).status == 404
    for path in ("/periods", "/finance", "/reconciliation", "/usage/download?dataset=journal"):
        assert (await stranger.open(path)).status in (400, 403), path


async def test_nobody_decides_what_he_asked_for(finance: Person, enter: Enter, database: Database) -> None:
    (user,) = [one for one in await admin_users.list_users(database, ME) if one.email == FINANCE]
    me = Actor(kind="user", id=str(user.id), label=FINANCE, role="finance")
    customer = finance.site.customers["Lumen Health"]
    await admin_adjustments.request_adjustment(
        database,
        me,
        tenant_id=customer.tenant_id,
        amount_usd="-300",
        reason="usage before the contract",
    )
    await finance.open("/periods?tab=changes")
    own = rows(finance, "Waits for a second person").filter(has_text="usage before the contract")
    await expect(own).to_contain_text("yours")
    await expect(own.get_by_role("button")).to_have_count(0)
    other = rows(finance, "Waits for a second person").filter(has_text="answered nonsense")
    await other.get_by_role("button", name="Approve").click()
    await answer(finance, "Approve", "seen the transcripts")
    await expect(finance.page.get_by_text("Adjustment: approved and done.")).to_be_visible()
    await expect(other).to_have_count(0)

    second = await enter(SECOND)
    await second.open(f"/periods?tab=changes&month={month(0)}")
    await expect(rows(second, "Adjustments").filter(has_text="answered nonsense")).to_contain_text(
        f"approved by {FINANCE}"
    )
    waiting = rows(second, "Waits for a second person").filter(has_text="before the contract")
    await waiting.get_by_role("button", name="Reject").click()
    await answer(second, "Reject", "not ours to charge")
    await expect(second.page.get_by_text("Nothing waits.")).to_be_visible()


async def test_a_month_is_told_again_by_two_people(finance: Person, enter: Enter, database: Database) -> None:
    page = finance.page
    await finance.open(f"/periods?tab=changes&month={month(1)}")
    await page.get_by_role("button", name="Re-rate").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Try it").click()
    await expect(dialog).to_contain_text("Dollars per million tokens, such as 0.50.")
    await dialog.get_by_label("Input", exact=True).fill("1")
    await dialog.get_by_label("Cached input").fill("0.1")
    await dialog.get_by_label("Output").fill("8")
    await dialog.get_by_role("button", name="Try it").click()
    # Output at 8 instead of 10 dollars: 7 requests each of 27,000 and 45,000 tokens, and 7 more for each one.
    tokens = sum(9_000 * scale + 7 * number for scale in (3, 5) for number in range(7))
    change = Decimal(tokens) * 2 / 1_000_000
    await expect(dialog).to_contain_text(f"In all {money(str(-change)).text}")
    await expect(dialog.locator("[aria-label='Change by tenant'] tbody tr")).to_have_count(2)
    await dialog.get_by_label("Reason", exact=True).fill("the announced price was 8")
    await dialog.get_by_role("button", name="Ask for the correction").click()
    await expect(page.get_by_text("waits for a second person.").first).to_be_visible()
    await finance.ready()
    await rows(finance, "Corrections").get_by_role("button", name="Open").click()
    mine = page.get_by_role("dialog", name="Correction")
    await expect(mine.get_by_role("button", name="Approve")).to_be_disabled()
    await expect(mine).to_contain_text("another person has to decide it")

    second = await enter(SECOND)
    await second.open(f"/periods?tab=changes&month={month(1)}")
    await rows(second, "Corrections").get_by_role("button", name="Open").click()
    await second.page.get_by_role("dialog", name="Correction").get_by_role("button", name="Approve").click()
    await answer(second, "Approve", "agreed")
    await expect(second.page.get_by_text("The correction is booked.")).to_be_visible()
    await expect(rows(second, "Corrections")).to_contain_text("Approved")
    booked = await admin_adjustments.list_adjustments(database, ME, month=month(0))
    credited = sum(Decimal(one.amount_usd) for one in booked if one.corrects == month(1))
    assert credited == change


async def test_the_margin_and_its_bridge_add_up(finance: Person, database: Database) -> None:
    start, end = bounds(parse_month(month(1)))
    before = bounds(parse_month(month(2)))
    bridge = await admin_economics.margin_bridge(database, ME, before=before, after=(start, end))
    await finance.open(f"/finance?month={month(1)}")
    await settled(finance)
    page = finance.page
    for label, usd in (("Revenue", bridge.after.revenue_usd), ("GPU cost", bridge.after.gpu_cost_usd)):
        stat = page.locator(".stat").filter(has=page.get_by_text(label, exact=True))
        await expect(stat.locator(".value")).to_have_text(money(usd).text)
        await expect(stat.locator(".value")).to_have_attribute("title", f"{usd} USD")
    await expect(page.get_by_text("The effects add up to the difference")).to_be_visible()
    told = await page.locator(".bridge dd").evaluate_all("all => all.map(one => one.title)")
    amounts = [Decimal(one.removesuffix(" USD")) for one in told]
    assert sum(amounts[:-1]) == amounts[-1]
    assert len(amounts) == 8
    await expect(rows(finance, "Unused GPU time")).to_have_count(3)

    await page.get_by_role("switch", name="Fully loaded").click()
    await page.wait_for_url("**loaded=1*")
    await settled(finance)
    await expect(page.get_by_text("Usage carries all host time.")).to_be_visible()
    (loaded,) = [
        row
        for row in await admin_economics.economics_report(
            database, ME, start=start, end=end, by=("model",), fully_loaded=True
        )
        if row.line == DIRECT
    ]
    line = rows(finance, "Cost per million tokens")
    await expect(line).to_contain_text(per_mtok(loaded.gpu_cost_per_mtok_usd).text)
    assert Decimal(loaded.gpu_cost_usd) == Decimal(bridge.after.gpu_cost_usd)


async def test_the_books_balance_and_the_journal_is_taken_away(finance: Person, database: Database) -> None:
    await finance.open(f"/finance?tab=books&month={month(0)}")
    await settled(finance)
    page = finance.page
    await expect(page.get_by_text("the books balance")).to_be_visible()
    start, end = bounds(parse_month(month(0)))
    balance = await admin_ledger.trial_balance(database, ME, start=start, end=end)
    await expect(rows(finance, "Trial balance")).to_have_count(len(balance.lines))
    async with page.expect_download() as wanted:
        await page.get_by_role("link", name="Journal CSV").click()
    path = Path(await (await wanted.value).path())
    lines = list(csv.DictReader(io.StringIO(path.read_text("utf-8-sig"))))
    assert sum(Decimal(line["amount_usd"]) for line in lines) == Decimal(balance.debit_usd)
    await page.get_by_role("button", name="Verify the ledger").click()
    await expect(page.get_by_text("The ledger verifies")).to_be_visible()


async def test_an_export_is_scheduled_written_and_fetched_with_its_checksum(
    finance: Person, database: Database
) -> None:
    page = finance.page
    await finance.open(f"/finance?tab=exports&month={month(0)}")
    await page.get_by_role("button", name="New export").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("month-end")
    await dialog.get_by_role("button", name="Schedule export").click()
    await expect(rows(finance, "Scheduled exports")).to_contain_text("month-end")
    await finance.ready()
    await page.get_by_role("button", name=f"Write {month(0)}").click()
    await expect(rows(finance, "Runs")).to_have_count(1)
    (run,) = await admin_exports.list_runs(database, ME)
    async with page.expect_download() as wanted:
        await rows(finance, "Runs").get_by_role("link", name="Download").click()
    content = Path(await (await wanted.value).path()).read_bytes()
    assert hashlib.sha256(content).hexdigest() == run.sha256
    await finance.open(f"/finance?tab=exports&month={month(0)}")
    await rows(finance, "Scheduled exports").get_by_role("button", name="Stop").click()
    await expect(rows(finance, "Scheduled exports")).to_contain_text("Stopped")


async def test_unexplained_tokens_are_an_incident_until_accepted(finance: Person, database: Database) -> None:
    page = finance.page
    await finance.open("/overview")
    incident = page.locator(".notice", has_text="880 tokens of engines are unexplained")
    await expect(incident).to_be_visible()
    await expect(page.locator(".stat", has_text="Drift").locator(".value")).to_have_text("$0.00")
    await incident.get_by_role("link").click()
    await expect(page.get_by_role("alert")).to_contain_text("880 tokens are unexplained on 1 engine")
    await settled(finance)
    await expect(rows(finance, "The chain").filter(has_text="Ledger")).to_contain_text("equal")
    await expect(rows(finance, "The chain").filter(has_text="engines compared")).to_contain_text(
        "unexplained"
    )
    await rows(finance, "Engines").get_by_role("link").click()
    await finance.ready()
    await expect(rows(finance, "Stretches")).to_have_count(2)
    await rows(finance, "Stretches").first.get_by_role("button", name="Requests").click()
    await expect(page.get_by_role("heading", name="Requests since")).to_be_visible()
    await page.get_by_role("button", name="Accept the difference").click()
    await answer(finance, "Accept", "a bench ran without the gateway")
    await expect(page.get_by_text("a bench ran without the gateway")).to_be_visible()
    (entry,) = await admin_audit.list_audit(database, ME, action="reconciliation.accept")
    assert entry.object_id == BOOT
    await finance.open("/reconciliation")
    await expect(page.get_by_role("alert")).to_have_count(0)
    await finance.open("/overview")
    await expect(incident).to_have_count(0)


async def test_a_dispute_and_the_comparison_with_stripe_are_told(finance: Person) -> None:
    await finance.open(f"/periods?tab=stripe&month={month(0)}")
    await expect(rows(finance, "Disputes")).to_contain_text("$20.00")
    await finance.page.get_by_role("button", name="Compare now").click()
    await expect(finance.page.get_by_text("Cash movements")).to_be_visible()


async def test_finance_pages_fit_a_phone_and_name_every_button(enter: Enter, finance: Person) -> None:
    phone = await enter(FINANCE, 400)
    for path in PAGES:
        await phone.open(path)
        await settled(phone)
        assert await phone.overflow() <= 0, path
        await finance.open(path)
        await settled(finance)
        assert await finance.overflow() <= 0, path
        nameless = await finance.page.evaluate(
            """() => [...document.querySelectorAll('button, input:not([type=hidden]), a')]
                .filter((node) => node.offsetParent !== null)
                .filter((node) => !(node.innerText || '').trim() && !node.getAttribute('aria-label')
                    && !node.title && !(node.labels && node.labels.length) && !node.closest('label'))
                .map((node) => node.outerHTML.slice(0, 200))"""
        )
        assert nameless == [], path
