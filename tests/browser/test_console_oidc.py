"""Signing in by an identity provider in the browser, and what each failure says on the sign-in page."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from admin import identity_providers
from admin.actor import system_actor
from core.db import Database
from tests.browser.conftest import Person
from tests.browser.seed import ADMIN, PASSWORD, PEPPER
from tests.browser.site import Site
from tests.support.oidc import HOST, IGNORED, ProviderServer, provider_server

pytestmark = pytest.mark.filterwarnings(*IGNORED)


@pytest_asyncio.fixture(loop_scope="session")
async def provider(site: Site) -> AsyncIterator[ProviderServer]:
    """The provider of Northwind's people."""
    tenant_id, me = site.northwind.tenant_id, system_actor("test")
    database = Database(site.database_url)
    try:
        with provider_server() as server:
            await identity_providers.set_provider(
                database,
                me,
                pepper=PEPPER.encode(),
                allow_hosts=frozenset({HOST}),
                tenant_id=tenant_id,
                issuer=server.issuer,
                client_id="penstock",
                client_secret="the client secret",
                mail_domains=[site.northwind.viewer.partition("@")[2]],
            )
            yield server
            await identity_providers.remove_provider(database, me, tenant_id=tenant_id)
    finally:
        await database.close()


async def _leave(person: Person) -> None:
    """From the sign-in page to the provider."""
    page = person.page
    await page.goto(f"{person.site.url}/sign-in?next=/usage")
    await page.get_by_role("link", name="Use your organisation's identity provider").click()
    await page.get_by_label("Email").fill(person.site.northwind.viewer)
    await page.get_by_role("button", name="Continue").click()
    await page.wait_for_url("**/oauth2/authorize?**")


async def _go(person: Person, sub: str) -> None:
    """To the provider, and back as `sub`."""
    await _leave(person)
    await person.page.locator("input[name=sub]").fill(sub)
    await person.page.get_by_role("button", name="Authorize", exact=True).click()
    await person.page.wait_for_url(f"{person.site.url}/**")


async def test_an_account_is_linked_once_and_then_signs_in_by_the_provider(
    person: Person, provider: ProviderServer, site: Site
) -> None:
    me = site.northwind.viewer
    await provider.know("rita", email=me, email_verified=True)
    person.expected_status = {401}
    await _go(person, "rita")
    await expect(person.page.get_by_role("heading", name="Link your account")).to_be_visible()
    assert [one for one in await person.context.cookies() if one["name"].startswith("penstock_")] == []
    for password in ("wrong wrong wrong", PASSWORD):
        await person.page.get_by_label("Password").fill(password)
        await person.page.get_by_role("button", name="Link and sign in").click()
        await person.page.wait_for_load_state()
    await expect(person.page.get_by_role("heading", name="Usage")).to_be_visible()

    await person.context.clear_cookies()
    await _go(person, "rita")
    await expect(person.page.get_by_role("heading", name="Usage")).to_be_visible()
    await person.open("/account")
    rows = person.page.locator("[aria-label='Sessions'] tbody tr", has_text="this session")
    await expect(rows).to_contain_text("Identity provider")


async def test_each_failure_is_told_on_the_sign_in_page(
    person: Person, provider: ProviderServer, site: Site
) -> None:
    me = site.northwind.viewer
    person.expected_status = {401, 503}
    alert = person.page.get_by_role("alert")
    await _leave(person)
    (state,) = provider.asked[-1]["state"]
    await person.page.goto(f"{site.url}/sign-in/callback?error=access_denied&state={state}")
    await expect(alert).to_contain_text("refused the sign-in: access_denied")
    await provider.know("unverified", email=me, email_verified=False)
    await _go(person, "unverified")
    await expect(alert).to_contain_text("verified")
    await provider.know("foreign", email="rita@elsewhere.example", email_verified=True)
    await _go(person, "foreign")
    await expect(alert).to_contain_text("domain is not allowed")
    await provider.know("nobody", email=f"nobody@{me.partition('@')[2]}", email_verified=True)
    await _go(person, "nobody")
    await expect(alert).to_contain_text("There is no account for you here")

    await person.page.goto(f"{site.url}/sign-in/callback?code=stolen&state=guessed")
    await expect(alert).to_contain_text("belongs to no sign-in that this browser began")
    await person.page.goto(f"{site.url}/sign-in/provider")
    await person.page.get_by_label("Email").fill("rita@elsewhere.example")
    await person.page.get_by_role("button", name="Continue").click()
    await expect(alert).to_contain_text("No identity provider is known")
    assert [one for one in await person.context.cookies() if "session" in one["name"]] == []


async def test_an_admin_sets_and_removes_a_provider(person: Person, site: Site) -> None:
    customer = site.customers["Lumen Health"]
    await person.sign_in(ADMIN)
    await person.open(f"/tenants/{customer.tenant_id}?tab=people")
    await person.page.get_by_role("button", name="Identity provider").click()
    dialog = person.page.get_by_role("dialog")
    await dialog.get_by_label("Issuer").fill("http://login.lumen.example")
    await dialog.get_by_label("Client id").fill("penstock")
    await dialog.get_by_label("Client secret").fill("the client secret")
    await dialog.get_by_label("Mail domains").fill("lumen.example, lumen.health")
    await dialog.get_by_role("button", name="Save").click()
    await expect(person.page.get_by_text("the issuer must begin with https://")).to_be_visible()
    await dialog.get_by_label("Issuer").fill("https://login.lumen.example")
    await dialog.get_by_role("button", name="Save").click()
    await expect(person.page.get_by_text("The identity provider is set.")).to_be_visible()
    await person.page.get_by_role("button", name="Identity provider").click()
    await expect(dialog.get_by_label("Mail domains")).to_have_value("lumen.example, lumen.health")
    await expect(dialog.get_by_label("Client secret")).to_have_value("")
    await dialog.get_by_role("button", name="Remove").click()
    await expect(person.page.get_by_role("dialog")).to_have_count(2)
    await person.page.get_by_role("dialog").last.get_by_role("button", name="Remove").click()
    await expect(person.page.get_by_text("The identity provider is removed.")).to_be_visible()
