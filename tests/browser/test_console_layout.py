"""Narrow screens and the keyboard."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.browser.conftest import Person
from tests.browser.seed import ADMIN
from tests.browser.site import Site

ADMIN_PATHS = ("/overview", "/tenants", "/models", "/pools", "/usage", "/audit")
TENANT_PATHS = ("/home", "/adapters", "/requests", "/usage", "/billing", "/alerts")


@pytest_asyncio.fixture(loop_scope="session")
async def phone(site: Site, browser: Browser) -> AsyncIterator[Person]:
    """Somebody with a narrow screen in the dark."""
    context = await browser.new_context(viewport={"width": 400, "height": 800}, color_scheme="dark")
    made = Person(site, context, await context.new_page())
    yield made
    await context.close()
    assert made.troubles == []


async def test_no_page_is_wider_than_a_phone(phone: Person, site: Site) -> None:
    await phone.page.goto(f"{site.url}/sign-in")
    assert await phone.overflow() <= 0
    await phone.sign_in(ADMIN)
    tabs = [
        f"/tenants/{site.northwind.tenant_id}?tab={tab}"
        for tab in ("overview", "keys", "limits", "adapters", "audit")
    ]
    for path in (*ADMIN_PATHS, *tabs):
        await phone.open(path)
        await expect(phone.page.locator("h1")).to_be_visible()
        assert await phone.overflow() <= 0, path


async def test_a_customers_pages_fit_a_phone(phone: Person, site: Site) -> None:
    await phone.sign_in(site.northwind.owner)
    for path in TENANT_PATHS:
        await phone.open(path)
        await expect(phone.page.locator("h1")).to_be_visible()
        assert await phone.overflow() <= 0, path


async def test_the_drawer_opens_leads_on_and_closes(phone: Person) -> None:
    await phone.sign_in(ADMIN)
    await phone.open("/overview")
    link = phone.page.get_by_role("link", name="Tenants")
    await expect(link).not_to_be_visible()
    await phone.page.get_by_role("button", name="Menu").click()
    await expect(link).to_be_visible()
    await phone.page.keyboard.press("Escape")
    await expect(link).not_to_be_visible()
    await phone.page.get_by_role("button", name="Menu").click()
    await link.click()
    await expect(phone.page.get_by_role("heading", name="Tenants")).to_be_visible()


async def test_the_theme_is_kept(person: Person) -> None:
    await person.sign_in(ADMIN)
    await person.open("/tenants")
    light = await person.page.evaluate("getComputedStyle(document.body).backgroundColor")
    await person.page.get_by_role("button", name="Light or dark").click()
    dark = await person.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark
    await person.open("/audit")
    assert await person.page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


async def test_every_field_and_button_has_a_name(person: Person, site: Site) -> None:
    await person.sign_in(ADMIN)
    for path in (*ADMIN_PATHS, f"/tenants/{site.northwind.tenant_id}?tab=keys"):
        await person.open(path)
        nameless = await person.page.evaluate(
            """() => [...document.querySelectorAll('button, input:not([type=hidden]), a')]
                .filter((node) => node.offsetParent !== null)
                .filter((node) => !(node.innerText || '').trim() && !node.getAttribute('aria-label')
                    && !node.title && !(node.labels && node.labels.length) && !node.closest('label'))
                .map((node) => node.outerHTML.slice(0, 200))"""
        )
        assert nameless == [], path


async def test_a_skip_link_comes_first(person: Person) -> None:
    await person.sign_in(ADMIN)
    await person.open("/tenants")
    await person.page.keyboard.press("Tab")
    await expect(person.page.get_by_role("link", name="Skip to content")).to_be_focused()
