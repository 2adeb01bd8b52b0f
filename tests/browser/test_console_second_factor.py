"""The second factor in the console: enrolled on the account page, asked for at sign-in."""

import re
from collections.abc import AsyncIterator

import pyotp
import pytest_asyncio
from playwright.async_api import Browser, expect

from admin.actor import system_actor
from admin.tenants import create_tenant
from admin.users import create_user
from console.panels.people import PAGE_ROWS
from core.db import Database
from core.ids import uuid7
from tenants import members
from tests.browser.conftest import Person
from tests.browser.seed import ADMIN, PASSWORD
from tests.browser.site import Site

ME = "careful@penstock.local"


@pytest_asyncio.fixture(loop_scope="session")
async def phone(site: Site, browser: Browser) -> AsyncIterator[Person]:
    """Somebody with a small screen in the dark."""
    context = await browser.new_context(viewport={"width": 400, "height": 800}, color_scheme="dark")
    made = Person(site, context, await context.new_page())
    yield made
    await context.close()
    assert made.troubles == []


async def test_a_person_enrols_and_signs_in_by_code(person: Person, phone: Person, site: Site) -> None:
    database = Database(site.database_url)
    try:
        await create_user(database, system_actor("test"), email=ME, password=PASSWORD, role="finance")
    finally:
        await database.close()
    await person.sign_in(ME)
    codes = await _enrol(person)
    assert await person.overflow() <= 0

    phone.expected_status = {401}
    await phone.sign_in(ME)
    await expect(phone.page.get_by_role("heading", name="Second factor")).to_be_visible()
    assert [one for one in await phone.context.cookies() if "session" in one["name"]] == []
    assert await phone.overflow() <= 0
    for code in ("000000", codes[0]):
        await phone.page.get_by_label("Code").fill(code)
        await phone.page.get_by_role("button", name="Continue").click()
        await phone.page.wait_for_load_state()
    await expect(phone.page.get_by_role("heading", name="Overview")).to_be_visible()
    await phone.open("/account")
    await expect(phone.page.get_by_text("On. 9 backup codes are left.")).to_be_visible()
    assert await phone.overflow() <= 0

    await person.open("/account")
    await person.page.get_by_role("button", name="Disable").click()
    dialog = person.page.get_by_role("dialog")
    await dialog.get_by_label("Password").fill(PASSWORD)
    await dialog.get_by_label("Code").fill(codes[0])
    await dialog.get_by_role("button", name="Disable").click()
    await expect(person.page.get_by_text("The code is wrong, or was used already.")).to_be_visible()
    await dialog.get_by_label("Code").fill(codes[1])
    await dialog.get_by_role("button", name="Disable").click()
    await expect(person.page.get_by_role("button", name="Enrol an authenticator app")).to_be_visible()


async def test_the_people_of_an_organisation_are_shown_in_pages(person: Person, site: Site) -> None:
    database = Database(site.database_url)
    try:
        large = await create_tenant(database, system_actor("test"), name="Page by page")
        async with database.system() as connection:
            for n in range(PAGE_ROWS + 1):
                await members.insert_user(
                    connection, large.id, uuid7(), f"p{n:03}@pages.example", "none", "tenant_viewer"
                )
    finally:
        await database.close()
    await person.sign_in(ADMIN)
    await person.open(f"/tenants/{large.id}?tab=people")
    rows = person.page.locator("[aria-label='People'] tbody tr")
    first, following = (
        person.page.get_by_role("button", name=f"{name} {PAGE_ROWS}") for name in ("First", "Next")
    )
    await expect(rows.first).to_contain_text("p000@pages.example")
    await expect(first).to_be_hidden()
    await following.click()
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text(f"p{PAGE_ROWS:03}@pages.example")
    await expect(following).to_be_hidden()
    await first.click()
    await expect(rows.first).to_contain_text("p000@pages.example")


async def test_an_owner_demands_it_and_ends_sessions_of_members(
    person: Person, phone: Person, site: Site
) -> None:
    customer = site.customers["Lumen Health"]
    await phone.sign_in(customer.viewer)
    await person.sign_in(customer.owner)
    await person.open("/account")
    people = person.page.locator("[aria-label='People'] tbody tr", has_text=customer.viewer)
    await people.get_by_role("button", name="Sessions").click()
    theirs = person.page.locator("[aria-label='Sessions of the person'] tbody tr")
    await expect(theirs.first).to_contain_text("Password")
    for left in reversed(range(await theirs.count())):  # other tests may have opened some
        await person.page.get_by_role("dialog").get_by_role("button", name="End session").first.click()
        await expect(theirs).to_have_count(left)
    await person.page.get_by_role("button", name="Close").click()
    await phone.page.goto(f"{site.url}/home")
    await expect(phone.page.get_by_role("heading", name="Sign in")).to_be_visible()

    await person.page.get_by_role("button", name="How people sign in").click()
    await person.page.get_by_label("Rule").click()
    await person.page.get_by_role("option", name="A second factor is required").click()
    await person.page.get_by_label("Reason").fill("policy")
    await person.page.get_by_role("dialog").get_by_role("button", name="Change").click()
    await person.page.wait_for_url("**/sign-in")

    phone.expected_status = {401}
    await phone.context.clear_cookies()  # of the session that was ended
    await phone.sign_in(customer.viewer)
    await expect(phone.page.get_by_role("heading", name="Enrol a second factor")).to_be_visible()
    assert [one for one in await phone.context.cookies() if "session" in one["name"]] == []
    assert await phone.overflow() <= 0
    secret = await phone.page.locator(".codes code").inner_text()
    for code in ("000000", pyotp.TOTP(secret).now()):
        assert await phone.page.locator(".codes code").inner_text() == secret
        await phone.page.get_by_label("Code").fill(code)
        await phone.page.get_by_role("button", name="Enrol").click()
        await phone.page.wait_for_load_state()
    await expect(phone.page.get_by_role("heading", name="Your backup codes")).to_be_visible()
    assert await phone.page.locator(".codes code").count() == 10
    assert await phone.overflow() <= 0
    await phone.page.get_by_role("link", name="I have stored them: continue").click()
    await phone.ready()
    await phone.open("/account")
    await expect(phone.page.get_by_text("On. 10 backup codes are left.")).to_be_visible()
    assert await phone.page.get_by_role("heading", name="People").count() == 0


async def _enrol(person: Person) -> list[str]:
    """Enrol on the account page; returns the backup codes."""
    await person.open("/account")
    await person.page.get_by_role("button", name="Enrol an authenticator app").click()
    dialog = person.page.get_by_role("dialog", name="Enrol an authenticator app")
    await dialog.get_by_label("Password").fill(PASSWORD)
    await dialog.get_by_role("button", name="Continue").click()
    scan = person.page.get_by_role("dialog", name="Scan the code")
    image = scan.get_by_role("img", name="QR code of the secret")
    await expect(image).to_be_visible()
    assert await image.evaluate("image => image.naturalWidth") > 100
    secret = await scan.locator(".secret code").inner_text()
    await scan.get_by_label("Code", exact=True).fill(pyotp.TOTP(secret).now())
    await scan.get_by_role("button", name="Enrol").click()
    shown = person.page.get_by_role("dialog", name="Store these backup codes now")
    codes = re.findall(r"[a-z2-9]{4}(?:-[a-z2-9]{4}){3}", await shown.locator(".secret code").inner_text())
    assert len(codes) == 10
    await shown.get_by_role("button", name="I have stored it").click()
    await expect(person.page.get_by_text("On. 10 backup codes are left.")).to_be_visible()
    return codes
