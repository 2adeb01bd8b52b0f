"""What administrators do in the console, end to end, and what is on record afterwards."""

import contextlib
import csv
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from playwright.async_api import Page, expect

from admin import accounts as admin_accounts
from admin import audit as admin_audit
from admin import keys as admin_keys
from admin import limits as admin_limits
from admin import model_life as admin_life
from admin import models as admin_models
from admin import prices as admin_prices
from admin.actor import system_actor
from admin.prices import PRICE_SET
from core.db import Database
from core.errors import Conflict
from tests.browser.conftest import Person
from tests.browser.seed import ADMIN, MODEL, PEPPER
from tests.browser.site import Site
from tests.support.approving import approve_requests
from tests.support.scheduling import agent, replica

ME = system_actor("test")


async def _fill(page: Page, **fields: str) -> None:
    for label, value in fields.items():
        await page.get_by_role("dialog").get_by_label(label.replace("_", " "), exact=False).first.fill(value)


async def _downloaded(page: Page, kind: str) -> Path:
    """Where the file behind the link called `kind` was put."""
    async with page.expect_download() as wanted:
        await page.get_by_role("link", name=kind).click()
    download = await wanted.value
    assert download.suggested_filename.endswith(f".{kind.lower()}")
    return Path(await download.path())


def _parsed_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8-sig"))))


def _parsed_json(path: Path) -> list[dict[str, Any]]:
    objects: list[dict[str, Any]] = json.loads(path.read_text())
    return objects


async def test_make_a_tenant_and_see_it_everywhere(person: Person, site: Site) -> None:
    await person.sign_in(ADMIN)
    await person.open("/tenants")
    await person.page.get_by_role("button", name="New tenant").click()
    await _fill(person.page, Name="Orbital Foods")
    await person.page.get_by_role("button", name="Create tenant").click()
    await expect(person.page.get_by_role("heading", name="Orbital Foods")).to_be_visible()
    await person.open("/tenants")
    await person.page.get_by_label("Search").fill("orbital")
    rows = person.page.locator("[aria-label='Tenants'] tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("Active")


async def test_suspend_and_resume_need_a_reason_that_is_kept(person: Person, site: Site) -> None:
    customer = site.customers["Lumen Health"]
    await person.sign_in(ADMIN)
    await person.open(f"/tenants/{customer.tenant_id}")
    await person.page.get_by_role("button", name="Suspend").click()
    dialog = person.page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Suspend").click()
    await expect(dialog).to_contain_text("Say why")
    await dialog.get_by_label("Reason").fill("chargeback under review")
    await dialog.get_by_role("button", name="Suspend").click()
    await expect(person.page.get_by_text("This tenant is suspended")).to_be_visible()
    await person.ready()
    await person.page.get_by_role("button", name="Resume").click()
    await dialog.get_by_label("Reason").fill("cleared")
    await dialog.get_by_role("button", name="Resume").click()
    await expect(person.page.get_by_text("This tenant is suspended")).to_have_count(0)

    await person.open("/audit")
    await person.page.get_by_label("Search").fill("chargeback")
    row = person.page.locator("[aria-label='Audit log'] tbody tr")
    await expect(row).to_have_count(1)
    await expect(row).to_contain_text(ADMIN)
    await row.get_by_role("button", name="Detail").click()
    detail = person.page.get_by_role("dialog")
    await expect(detail.locator("tr", has_text="status")).to_contain_text("activesuspended")


async def test_a_throttle_is_shown_and_can_be_lifted(person: Person, site: Site) -> None:
    customer = site.customers["Lumen Health"]
    await person.sign_in(ADMIN)
    await person.open(f"/tenants/{customer.tenant_id}")
    dialog = person.page.get_by_role("dialog")
    await person.page.get_by_role("button", name="Throttle 1 h").click()
    await dialog.get_by_label("Reason").fill("crowds out the others")
    await dialog.get_by_role("button", name="Throttle").click()
    await expect(person.page.get_by_text("This tenant is throttled")).to_be_visible()
    await person.ready()
    await person.page.get_by_role("button", name="Lift throttle").click()
    await dialog.get_by_label("Reason").fill("calm again")
    await dialog.get_by_role("button", name="Lift").click()
    await expect(person.page.get_by_text("This tenant is throttled")).to_have_count(0)


async def test_a_fair_share_is_shown_and_can_be_changed(person: Person, site: Site) -> None:
    customer = site.customers["Lumen Health"]
    await person.sign_in(ADMIN)
    await person.open(f"/tenants/{customer.tenant_id}?tab=limits")
    await expect(person.page.get_by_text("100 %", exact=True)).to_be_visible()
    dialog = person.page.get_by_role("dialog")
    await person.page.get_by_role("button", name="Change share").click()
    await _fill(person.page, Share="0")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_text("A whole number from 1 to 10000.")).to_be_visible()
    await _fill(person.page, Share="250", Reason="contract 12")
    await dialog.get_by_role("button", name="Save").click()
    await expect(person.page.get_by_text("250 %", exact=True)).to_be_visible()


async def test_a_key_is_seen_once_works_and_dies_when_revoked(person: Person, site: Site) -> None:
    await person.sign_in(site.northwind.owner)
    await person.open("/home")
    await person.page.get_by_role("button", name="New key").click()
    await _fill(person.page, Name="nightly batch")
    await person.page.get_by_role("button", name="Create key").click()
    secret = await person.page.locator(".secret code").inner_text()
    assert secret.startswith("pen_live_")
    await person.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await person.page.get_by_role("dialog").get_by_role("button", name="Copy").click()
    await expect(person.page.get_by_role("button", name="Copied")).to_be_visible()
    assert await person.page.evaluate("navigator.clipboard.readText()") == secret
    database = Database(site.database_url)
    try:
        found = await admin_keys.find_key(database, ME, pepper=PEPPER.encode(), raw=secret)
        assert found.name == "nightly batch"
        await person.page.get_by_role("button", name="I have stored it").click()
        await expect(person.page.get_by_text(secret)).to_have_count(0)
        await person.page.reload()
        await person.ready()
        assert secret not in await person.page.content()

        row = person.page.locator("[aria-label='API keys'] tbody tr", has_text="nightly batch")
        await row.get_by_role("button", name="Revoke").click()
        dialog = person.page.get_by_role("dialog")
        await dialog.get_by_label("Reason").fill("job was removed")
        await dialog.get_by_role("button", name="Revoke").click()
        await expect(row).to_contain_text("Revoked")
        assert (await admin_keys.get_key(database, ME, key_id=found.id)).status == "revoked"
        (entry,) = await admin_audit.list_audit(database, ME, object_id=str(found.id), action="key.revoke")
        assert (entry.reason, entry.actor_label) == ("job was removed", site.northwind.owner)
    finally:
        await database.close()


async def test_limits_are_set_and_nonsense_is_refused(person: Person, site: Site) -> None:
    await person.sign_in(ADMIN)
    await person.open(f"/tenants/{site.northwind.tenant_id}?tab=limits")
    row = person.page.locator("[aria-label='Limits'] tbody tr", has_text="Whole organisation")
    await row.get_by_role("button", name="Edit").click()
    dialog = person.page.get_by_role("dialog")
    await dialog.get_by_label("Requests/min").fill("many")
    await dialog.get_by_role("button", name="Set limits").click()
    await expect(dialog).to_contain_text("A whole number above zero")
    await dialog.get_by_label("Requests/min").fill("1,200")
    await dialog.get_by_label("Open requests").fill("16")
    await dialog.get_by_role("button", name="Set limits").click()
    await expect(row).to_contain_text("0 of 1,200")
    await expect(row).to_contain_text("0 of 16")
    database = Database(site.database_url)
    try:
        limits = await admin_limits.get_limits(
            database,
            ME,
            tenant_id=site.northwind.tenant_id,
            scope_kind="tenant",
            scope_id=site.northwind.tenant_id,
        )
    finally:
        await database.close()
    assert (limits.requests_per_min, limits.concurrency, limits.tokens_per_day) == (1200, 16, None)


async def test_credit_is_granted_exactly_and_a_budget_shows(person: Person, site: Site) -> None:
    database = Database(site.database_url)
    tenant_id = site.northwind.tenant_id
    try:
        before = await admin_accounts.get_account(database, ME, tenant_id=tenant_id)
        await person.sign_in(ADMIN)
        await person.open(f"/tenants/{tenant_id}")
        await person.page.get_by_role("button", name="Grant credit").click()
        dialog = person.page.get_by_role("dialog")
        await dialog.get_by_label("Amount in US dollars").fill("$80.10")
        await dialog.get_by_role("button", name="Grant credit").click()
        await expect(dialog).to_contain_text("Say why")
        await dialog.get_by_label("Reason").fill("goodwill after the outage")
        await dialog.get_by_role("button", name="Grant credit").click()
        await expect(person.page.locator("[aria-label='Credits']")).to_contain_text(
            "goodwill after the outage"
        )
        after = await admin_accounts.get_account(database, ME, tenant_id=tenant_id)
        assert Decimal(after.balance_usd) - Decimal(before.balance_usd) == Decimal("80.10")

        await person.page.get_by_role("button", name="Set budget").click()
        await dialog.get_by_label("US dollars per month").fill("200")
        await dialog.get_by_role("button", name="Set budget").click()
        await expect(person.page.get_by_text("of $200.00 used")).to_be_visible()
    finally:
        await database.close()


async def test_a_price_is_scheduled_and_listed(person: Person, site: Site) -> None:
    await person.sign_in(ADMIN)
    await person.open("/models")
    await person.page.get_by_role("button", name="New price").click()
    dialog = person.page.get_by_role("dialog")
    await dialog.get_by_label("Input", exact=True).fill("0.4")
    await dialog.get_by_label("Output", exact=True).fill("one")
    await dialog.get_by_label("Begins (UTC)").fill("2099-01-01")
    await dialog.get_by_role("button", name="Save price").click()
    await expect(dialog).to_contain_text("Dollars per million tokens, such as 0.50.")
    await dialog.get_by_label("Output", exact=True).fill("1.2345")
    await dialog.get_by_role("button", name="Save price").click()
    await expect(person.page.get_by_text("waits for the approval of another person")).to_be_visible()
    await approve_requests(site.database_url, PRICE_SET)
    await person.open("/models")
    row = person.page.locator("[aria-label='Prices'] tbody tr", has_text="Scheduled")
    await expect(row).to_contain_text("$1.2345")
    await expect(row).to_contain_text("1 Jan 2099")


async def test_an_alias_is_made_and_a_model_deprecated_and_replaced(person: Person, site: Site) -> None:
    database, other = Database(site.database_url, name="test"), "llama-3.3-70b"
    try:
        await admin_models.add_model(database, ME, name=other)
        await admin_prices.set_price(database, ME, model=other, input="1", output="2")
        await person.sign_in(ADMIN)
        await person.open("/models")
        table, dialog = person.page.locator("[aria-label='Models']"), person.page.get_by_role("dialog")
        await person.page.get_by_role("button", name="New alias").click()
        await dialog.get_by_label("Alias").fill("fast")
        await dialog.get_by_label("Stands for").click()
        await person.page.get_by_role("option", name=MODEL).click()
        await dialog.get_by_role("button", name="Save alias").click()
        await expect(table.locator("tbody tr", has_text="fast")).to_contain_text(MODEL)

        await person.page.get_by_role("button", name=f"Deprecate {MODEL}").click()
        await dialog.get_by_label("Retires (UTC)").fill("soon")
        await dialog.get_by_role("button", name="Deprecate").click()
        await expect(dialog).to_contain_text("A UTC date such as 2026-12-01")
        await dialog.get_by_label("Retires (UTC)").fill("2999-01-01")
        await dialog.get_by_role("button", name="Deprecate").click()
        await expect(table).to_contain_text("until 2999-01-01 00:00")

        await person.page.get_by_role("button", name=f"Replace {MODEL}").click()
        await dialog.get_by_label("Answered by").click()
        await person.page.get_by_role("option", name=other).click()
        await dialog.get_by_label("From (UTC)").fill("2998-06-01")
        await dialog.get_by_role("button", name="Replace").click()
        await expect(person.page.get_by_text(f"'{other}' lacks what '{MODEL}' has")).to_be_visible()
        await dialog.get_by_text("Accept that it lacks").click()
        await dialog.get_by_role("button", name="Replace").click()
        await expect(table.locator("tbody tr", has_text="until 2998-06-01")).to_contain_text("answers for it")

        await person.page.get_by_role("button", name="Retire fast").click()
        await dialog.get_by_label("Note").fill("not wanted")
        await dialog.get_by_role("button", name="Retire").click()
        await expect(table.locator("tbody tr", has_text="fast")).to_contain_text("Retired")
        views = {view.name: view for view in await admin_models.list_models(database, ME)}
        assert (views["fast"].status, views["fast"].note) == ("retired", "not wanted")
        assert (views[MODEL].replacement, views[MODEL].redirected) == (other, True)

        await person.context.clear_cookies()
        await person.sign_in(site.northwind.viewer)
        await expect(person.page.get_by_text(f"{MODEL} retires")).to_be_visible()
        await expect(person.page.get_by_text(f"answered by {other}, at its price.")).to_be_visible()
    finally:
        with contextlib.suppress(Conflict):
            await admin_models.add_model(database, ME, name=MODEL)
        await admin_life.retire_model(database, ME, name=other)
        await database.close()


async def test_a_price_below_cost_is_saved_only_after_a_question(person: Person, site: Site) -> None:
    await person.sign_in(ADMIN)
    await person.open("/models")
    await person.page.get_by_role("button", name="New price").click()
    form = person.page.get_by_role("dialog", name="New price")
    await form.get_by_label("Input", exact=True).fill("0.0001")
    await form.get_by_label("Output", exact=True).fill("0.0001")
    await form.get_by_label("Begins (UTC)").fill("2098-01-01")
    question = person.page.get_by_role("dialog", name="Save a price below cost?")
    await form.get_by_role("button", name="Save price").click()
    await expect(question).to_contain_text("at full load a local-cpu")
    await question.get_by_role("button", name="Cancel").click()
    await expect(question).to_be_hidden()
    database = Database(site.database_url, name="test")
    try:
        scheduled = [
            each.status for each in await admin_prices.list_prices(database, ME) if each.input == "0.0001"
        ]
        assert scheduled == []
        await form.get_by_role("button", name="Save price").click()
        await question.get_by_role("button", name="Save all the same").click()
        await expect(person.page.get_by_text("waits for the approval of another person")).to_be_visible()
    finally:
        await database.close()


async def test_the_report_on_the_page_and_in_the_files_is_the_ledgers(person: Person, site: Site) -> None:
    await person.sign_in(ADMIN)
    await person.open("/usage")
    table = person.page.locator("[aria-label='Usage report']")
    await expect(table).to_contain_text("Northwind Robotics")
    await expect(table.locator("tr.total")).to_contain_text("17")

    rows = _parsed_csv(await _downloaded(person.page, "CSV"))
    objects = _parsed_json(await _downloaded(person.page, "JSON"))
    assert [row["cost_usd"] for row in rows] == [row["cost_usd"] for row in objects]

    northwind = [row for row in rows if row["tenant_id"] == str(site.northwind.tenant_id)]
    assert sum(int(row["requests"]) for row in northwind) == 12
    uncached = sum(800 + index for index in range(12))
    expected = (Decimal(uncached) * 500 + Decimal(12 * 200) * 50 + Decimal(12 * 500) * 1500) / 10**9
    assert sum(Decimal(row["cost_usd"]) for row in northwind) == expected
    assert "gpu_cost_usd" in rows[0]


async def test_a_customer_downloads_its_own_rows_without_our_costs(person: Person, site: Site) -> None:
    other = site.customers["Lumen Health"]
    await person.sign_in(site.northwind.viewer)
    await person.open(f"/usage?tenant={other.tenant_id}&by=tenant,key,model")
    await expect(person.page.get_by_text("GPU cost")).to_have_count(0)
    rows = _parsed_csv(await _downloaded(person.page, "CSV"))
    assert {row["tenant_id"] for row in rows} <= {"", str(site.northwind.tenant_id)}
    assert sum(int(row["requests"]) for row in rows) == 12
    assert not any(name.startswith(("gpu_", "margin_")) for name in rows[0])


async def test_pools_are_live_and_a_drain_reaches_the_agent(person: Person, site: Site) -> None:
    await person.sign_in(ADMIN)
    await person.open("/pools")
    async with agent(site.scheduler_port, replica("host-1/tiny-0", model=MODEL, kv_usage=0.25)) as running:
        row = person.page.locator("[aria-label='Replicas'] tbody tr", has_text="host-1/tiny-0")
        await expect(row).to_contain_text("Ready")
        await expect(row).to_contain_text("25%")
        await row.get_by_role("button", name="Drain").click()
        dialog = person.page.get_by_role("dialog")
        await dialog.get_by_label("Reason").fill("new kernel")
        await dialog.get_by_role("button", name="Drain").click()
        await expect(person.page.get_by_text("drain done")).to_be_visible()
        assert [command.action for command in running.commands] == ["drain"]
    database = Database(site.database_url)
    try:
        entries = await admin_audit.list_audit(database, ME, action="replica.drain")
    finally:
        await database.close()
    assert [(entry.object_id, entry.reason) for entry in entries] == [("host-1/tiny-0", "new kernel")]


async def test_the_overview_shows_what_was_settled(person: Person, site: Site) -> None:
    await person.sign_in(ADMIN)
    await person.open("/overview")
    requests = person.page.locator(".stat", has_text="Requests").first
    await expect(requests).to_contain_text("17")
    await expect(person.page.locator(".stat", has_text="TTFT p50")).to_contain_text("ms")


async def test_what_people_type_stays_text(person: Person, site: Site) -> None:
    """A name with markup and template braces is shown as it is, on every page that shows it."""
    name = "<img src=x onerror=alert(1)> {{ 7 * 6 }} ${1}"
    await person.sign_in(ADMIN)
    await person.open("/tenants")
    await person.page.get_by_role("button", name="New tenant").click()
    await _fill(person.page, Name=name)
    await person.page.get_by_role("button", name="Create tenant").click()
    await expect(person.page.get_by_role("heading", name=name)).to_be_visible()
    for path in ("/tenants", "/audit", "/usage"):
        await person.open(path)
        assert await person.page.locator("img[src='x']").count() == 0
    await person.open("/tenants")
    await expect(person.page.get_by_role("link", name=name)).to_be_visible()
