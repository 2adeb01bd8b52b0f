"""axe-core finds no violation: on every page, in every dialog; in the light at a desk, in the dark on a phone."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ViewportSize, expect

from console.layout import NAVIGATION
from console.viewer import PLATFORM_ROLES, TENANT_ROLES
from tests.browser.conftest import Person
from tests.browser.seed import ADMIN
from tests.browser.site import Site

TENANT_TABS = "/tenants/{tenant}?tab=overview"
DIALOGS = {
    "/pools": ("Invite host",),
    "/tenants": ("New tenant",),
    "/models": ("Add model", "New alias", "New price", "New rollout"),
    "/periods": ("Make invoices",),
    "/periods?tab=changes": ("Re-rate",),
    "/finance?tab=provider": ("Enter invoice",),
    "/finance?tab=exports": ("New export",),
    "/alerts?tab=notices": ("Add",),
    "/account": ("New token",),
    TENANT_TABS: ("Suspend", "Grant credit", "Set budget"),
    "/tenants/{tenant}?tab=money": ("New contract", "Adjust"),
    "/tenants/{tenant}?tab=alerts": ("New budget", "Low balance"),
    "/tenants/{tenant}?tab=keys": ("New key", "New project"),
    "/tenants/{tenant}?tab=limits": ("Change share", "Edit"),
}
"""By page: the buttons that open a dialog for an administrator of the platform."""

IN_DIALOGS = {"rules": {"color-contrast": {"enabled": False}}}
"""axe-core takes the backdrop, which has a z-index of -1, for what is behind the text of a dialog. The colours of
dialogs are those of pages."""


@pytest_asyncio.fixture(loop_scope="session", params=["desk", "phone"])
async def visitor(request: pytest.FixtureRequest, site: Site, browser: Browser) -> AsyncIterator[Person]:
    """Somebody at a desk in the light, or with a phone in the dark."""
    desk = request.param == "desk"
    size = ViewportSize(width=1440, height=900) if desk else ViewportSize(width=400, height=800)
    context = await browser.new_context(viewport=size, color_scheme="light" if desk else "dark")
    made = Person(site, context, await context.new_page())
    yield made
    await context.close()
    assert made.troubles == []


async def violations(visitor: Person, options: dict[str, Any] | None = None) -> list[str]:
    """What axe-core finds on the page: the rule, the element, and what is wrong with it."""
    await visitor.page.evaluate("Promise.allSettled(document.getAnimations().map((each) => each.finished))")
    found: dict[str, Any] = (await Axe().run(visitor.page, options=options)).response
    return [
        f"\n{visitor.page.url}: {each['id']}: {node['html'][:200]}: {node.get('failureSummary')}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


async def violations_on(visitor: Person, paths: list[str]) -> list[str]:
    """What axe-core finds on these pages and their tabs."""
    found = []
    for path in paths:
        await visitor.open(path)
        await expect(visitor.page.locator("h1")).to_be_visible()
        found += await violations(visitor)
        tabs = await visitor.page.locator(".link-tabs a").evaluate_all(
            "links => links.filter(a => !a.ariaCurrent).map(a => a.getAttribute('href'))"
        )
        for tab in tabs:
            await visitor.open(tab)
            await expect(visitor.page.locator("h1")).to_be_visible()
            found += await violations(visitor)
    return found


async def test_no_page_of_the_platform_has_a_violation(visitor: Person, site: Site) -> None:
    await visitor.page.goto(f"{site.url}/sign-in")
    assert not await violations(visitor)
    await visitor.sign_in(ADMIN)
    paths = [item.path for item in NAVIGATION if item.roles & frozenset(PLATFORM_ROLES)]
    found = await violations_on(visitor, [*paths, TENANT_TABS.format(tenant=site.northwind.tenant_id)])
    assert not found, "".join(found)


async def test_no_page_of_a_customer_has_a_violation(visitor: Person, site: Site) -> None:
    await visitor.sign_in(site.northwind.owner)
    paths = [item.path for item in NAVIGATION if item.roles & frozenset(TENANT_ROLES)]
    found = await violations_on(visitor, paths)
    assert not found, "".join(found)


async def test_no_dialog_has_a_violation(visitor: Person, site: Site) -> None:
    await visitor.sign_in(ADMIN)
    found = []
    for path, buttons in DIALOGS.items():
        await visitor.open(path.format(tenant=site.northwind.tenant_id))
        for name in buttons:
            await visitor.page.locator("#content").get_by_role("button", name=name).first.click()
            dialog = visitor.page.get_by_role("dialog")
            await expect(dialog).to_be_visible()
            found += await violations(visitor, IN_DIALOGS)
            await visitor.page.keyboard.press("Escape")
            await expect(dialog).not_to_be_visible()
    assert not found, "".join(found)
