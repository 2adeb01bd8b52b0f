"""Signing in and out, and who may open and do what."""

import urllib.error
import urllib.request

import pytest
from playwright.async_api import expect

from admin.actor import system_actor
from admin.users import create_user, disable_user
from core.db import Database
from tests.browser.conftest import Person
from tests.browser.seed import ADMIN, FINANCE, PASSWORD
from tests.browser.site import Site
from tests.support.waiting import until

PLATFORM_PAGES = (
    "/overview",
    "/tenants",
    "/models",
    "/pools",
    "/periods",
    "/finance",
    "/reconciliation",
    "/audit",
)


async def test_a_wrong_password_is_refused_and_the_right_one_opens_the_overview(person: Person) -> None:
    person.expected_status = {401}
    await person.sign_in(ADMIN, "not the password at all")
    await expect(person.page.get_by_role("alert")).to_have_text("Email or password is wrong.")
    assert await person.context.cookies() == []

    await person.sign_in(ADMIN)
    await expect(person.page.get_by_role("heading", name="Overview")).to_be_visible()
    (cookie,) = [one for one in await person.context.cookies() if "session" in one["name"]]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"


async def test_guessing_is_slowed_down(person: Person, site: Site) -> None:
    person.expected_status = {401, 429}
    for _ in range(5):
        await person.sign_in("guessed@penstock.local", "wrong wrong wrong")
    await person.sign_in("guessed@penstock.local", "wrong wrong wrong")
    await expect(person.page.get_by_role("alert")).to_contain_text("Too many")


async def test_signing_in_changes_the_session_and_signing_out_ends_it(person: Person, site: Site) -> None:
    await person.sign_in(ADMIN)
    first = await _session(person)
    await person.sign_in(ADMIN)
    second = await _session(person)
    assert first != second
    assert _status(site, "/overview", first) == 303, "the old session must be dead"
    assert _status(site, "/overview", second) == 200

    await person.open("/overview")
    await person.page.get_by_role("button", name="Sign out").click()
    await expect(person.page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert _status(site, "/overview", second) == 303


async def test_an_open_page_can_do_nothing_once_its_session_ended(person: Person) -> None:
    await person.sign_in(ADMIN)
    await person.open("/tenants")
    other = await person.context.new_page()
    await other.goto(f"{person.site.url}/overview")
    await other.get_by_role("button", name="Sign out").click()
    await other.wait_for_url("**/sign-in")
    await person.page.get_by_role("button", name="New tenant").click()
    await person.page.wait_for_url("**/sign-in")


async def test_ones_own_sessions_and_tokens_are_listed_made_and_ended(person: Person, site: Site) -> None:
    await person.sign_in(ADMIN)
    other = await _session(person)
    await person.context.clear_cookies()
    await person.sign_in(ADMIN)
    await person.open("/account")
    rows = person.page.locator("[aria-label='Sessions'] tbody tr")
    await expect(rows.first).to_contain_text("this session")
    await rows.nth(1).get_by_role("button", name="End session").click()
    await expect(person.page.get_by_text("The session has ended.")).to_be_visible()
    assert _status(site, "/overview", other) == 303

    await person.page.get_by_role("button", name="End all others").click()
    await person.page.get_by_role("dialog").get_by_role("button", name="End all others").click()
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("this session")

    await person.page.get_by_role("button", name="New token").click()
    await person.page.get_by_label("Name").fill("nightly export")
    await person.page.get_by_role("button", name="Create token").click()
    await expect(person.page.get_by_text("Store this token now")).to_be_visible()
    await person.page.get_by_role("button", name="I have stored it").click()
    row = person.page.locator("[aria-label='Tokens'] tbody tr", has_text="nightly export")
    await expect(row).to_contain_text("read, write")
    await row.get_by_role("button", name="Revoke").click()
    await person.page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await expect(row).to_have_count(0)


async def test_a_disabled_person_is_out_at_the_next_page(person: Person, site: Site) -> None:
    database = Database(site.database_url)
    me = system_actor("test")
    try:
        user = await create_user(
            database, me, email="leaver@penstock.local", password=PASSWORD, role="finance"
        )
        await person.sign_in("leaver@penstock.local")
        await person.open("/overview")
        await disable_user(database, me, user_id=user.id)
    finally:
        await database.close()
    await person.page.goto(f"{site.url}/overview")
    await expect(person.page.get_by_role("heading", name="Sign in")).to_be_visible()


@pytest.mark.promise(23)
async def test_a_tenant_user_sees_own_pages_and_is_refused_the_platforms(person: Person, site: Site) -> None:
    person.expected_status = {403}
    await person.sign_in(site.northwind.owner)
    await expect(person.page.get_by_role("heading", name="Northwind Robotics")).to_be_visible()
    links = person.page.locator("nav a > span")
    assert [await link.inner_text() for link in await links.all()] == [
        "Home",
        "Adapters",
        "Requests",
        "Usage",
        "Billing",
        "Alerts",
        "Account",
    ]
    for path in (*PLATFORM_PAGES, f"/tenants/{site.northwind.tenant_id}"):
        response = await person.page.goto(site.url + path)
        assert response is not None
        assert response.status == 403, path
        await expect(person.page.get_by_role("heading", name="Not for your role")).to_be_visible()


async def test_the_server_refuses_what_a_page_did_not_offer(person: Person, site: Site) -> None:
    """Row buttons are sent by hand, as a changed page would: the table of a viewer has no Revoke."""
    await person.sign_in(site.northwind.viewer)
    await person.open("/home")
    await expect(person.page.get_by_role("button", name="New key")).to_have_count(0)
    await _press_by_hand(person, "API keys", "revoke", str(site.northwind.key_id))
    dialog = person.page.get_by_role("dialog")
    await dialog.get_by_label("Reason").fill("not mine to take")
    await dialog.get_by_role("button", name="Revoke").click()
    await expect(person.page.get_by_role("alert")).to_contain_text("may not do this")


async def test_finance_may_change_money_and_nothing_else(person: Person, site: Site) -> None:
    await person.sign_in(FINANCE)
    await person.open("/tenants")
    await expect(person.page.get_by_text("Northwind Robotics")).to_be_visible()
    await expect(person.page.get_by_role("button", name="New tenant")).to_have_count(0)
    await _press_by_hand(person, "Tenants", "suspend", str(site.northwind.tenant_id))
    dialog = person.page.get_by_role("dialog")
    await dialog.get_by_label("Reason").fill("late invoice")
    await dialog.get_by_role("button", name="Suspend").click()
    await expect(person.page.get_by_role("alert")).to_contain_text("may not do this")
    await person.open(f"/tenants/{site.northwind.tenant_id}")
    await expect(person.page.get_by_role("button", name="Grant credit")).to_be_visible()


@pytest.mark.parametrize(
    "path", ["/overview", "/usage/download?format=csv", "/nothing-here", "/_nicegui_ws/socket.io/"]
)
def test_without_a_session_nothing_is_served(site: Site, path: str) -> None:
    assert _status(site, path) in (303, 401)


def test_answers_carry_the_headers_that_keep_browsers_safe(site: Site) -> None:
    with urllib.request.urlopen(f"{site.url}/sign-in", timeout=60) as answer:
        headers = {name.lower(): value for name, value in answer.headers.items()}
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


def test_a_form_of_another_site_is_refused(site: Site) -> None:
    request = urllib.request.Request(
        f"{site.url}/sign-in", data=b"email=a&password=b", headers={"Origin": "https://evil.example"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 403
    refused.value.close()


async def test_pages_that_were_closed_are_forgotten(person: Person, site: Site) -> None:
    """Timers and tasks of a page end with it: the process returns to where it was."""
    await person.sign_in(ADMIN)
    await person.open("/overview")
    pages, floor = site.metric("penstock_console_open_pages"), site.metric("penstock_console_tasks")
    for _ in range(3):
        tab = await person.context.new_page()
        await tab.goto(f"{site.url}/pools")
        await expect(tab.get_by_role("heading", name="Pools")).to_be_visible()
    assert site.metric("penstock_console_tasks") > floor
    for tab in person.context.pages[1:]:
        await tab.close()
    await until(lambda: site.metric("penstock_console_open_pages") <= pages)
    await until(lambda: site.metric("penstock_console_tasks") <= floor)


async def _session(person: Person) -> str:
    (cookie,) = [one for one in await person.context.cookies() if "session" in one["name"]]
    return cookie["value"]


def _status(site: Site, path: str, session: str = "") -> int:
    """The status of a GET, redirects not followed."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args: object) -> None:
            return None

    headers = {"Cookie": f"penstock_session={session}"} if session else {}
    try:
        with urllib.request.build_opener(Stay).open(
            urllib.request.Request(site.url + path, headers=headers), timeout=60
        ) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


async def _press_by_hand(person: Person, table: str, act: str, row: str) -> None:
    """Send a row's act over the page's socket though the page shows no such button."""
    await person.page.evaluate(
        """([label, act, row]) => {
            const node = document.querySelector(`.data[aria-label="${label}"]`);
            getElement(Number(node.id.slice(1))).$emit("act", {id: act, row});
        }""",
        [table, act, row],
    )
