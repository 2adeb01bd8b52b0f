"""Finance at work in the console: a month's close, invoices down to requests, margin, the books, reconciliation."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import pytest
from playwright.async_api import Browser, expect

from tests.browser.conftest import Person
from tests.browser.seed import FINANCE
from tests.browser.seed_finance import finance_seed, months
from tests.browser.site import Site, running_site
from tests.support.services import Services
from tests.support.stripe_sim import FakeStripe, running


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


@pytest.fixture
async def finance(books: Site, browser: Browser) -> AsyncIterator[Person]:
    """Somebody of finance at a desk, signed in."""
    context = await browser.new_context(viewport={"width": 1280, "height": 860}, accept_downloads=True)
    made = Person(books, context, await context.new_page())
    await made.sign_in(FINANCE)
    yield made
    await context.close()
    assert made.troubles == []


def month(back: int) -> str:
    """The name of the month `back` months ago."""
    return f"{months(datetime.now(UTC))[2 - back]:%Y-%m}"


async def test_the_checklist_says_what_stands_against_the_close(finance: Person) -> None:
    await finance.open("/periods")
    await expect(finance.page.get_by_role("heading", name=f"Close of {month(2)}")).to_be_visible()
    line = finance.page.locator(".checklist li", has_text="The GPU invoice is entered")
    await expect(line.get_by_role("img", name="red")).to_be_visible()
    await expect(finance.page.get_by_role("button", name="Close month")).to_be_disabled()
