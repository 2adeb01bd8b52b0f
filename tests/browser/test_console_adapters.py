"""The adapters of an organisation: uploaded with both files, imported from the hub, copied, seen and deleted."""

from pathlib import Path

from playwright.async_api import expect

from admin.adapters import list_adapters
from core.db import Database
from sim.hub import COMMIT
from tests.browser.conftest import Person
from tests.browser.hub import HUB_MODEL
from tests.browser.seed import ADMIN, MODEL
from tests.browser.site import Site
from tests.support.adapters import write_adapter
from tests.support.approving import approve_all
from tests.support.tenancy import ADMIN as ME
from workers.adapter_files import CONFIG, WEIGHTS

ROWS = "[aria-label='LoRA adapters'] tbody tr"


async def test_an_owner_uploads_copies_and_deletes_an_adapter(
    person: Person, site: Site, tmp_path: Path
) -> None:
    files = write_adapter(tmp_path / "support")
    await person.sign_in(site.northwind.owner)
    await person.open("/adapters")
    page, dialog = person.page, person.page.get_by_role("dialog")
    await page.get_by_role("button", name="Upload adapter").click()
    send = dialog.get_by_role("button", name="Upload")
    await dialog.get_by_label("Name", exact=True).fill("Support!")
    await send.click()
    await expect(dialog.get_by_role("alert")).to_contain_text("1 to 40 small letters")
    await dialog.get_by_label("Name", exact=True).fill("support")
    await send.click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Choose both files.")
    await dialog.get_by_label("adapter_config.json").set_input_files(files / CONFIG)
    await dialog.get_by_label("adapter_model.safetensors").set_input_files(files / CONFIG)
    person.expected_status.add(400)
    await send.click()
    await expect(dialog.get_by_role("alert")).to_contain_text("safetensors")
    await dialog.get_by_label("adapter_model.safetensors").set_input_files(files / WEIGHTS)
    await send.click()
    await expect(dialog).to_have_count(0)
    row = page.locator(ROWS, has_text="support")
    for fact in (MODEL, "Ready", "Upload", "rank 4"):
        await expect(row).to_contain_text(fact)

    database = Database(site.database_url, name="test")
    try:
        (made,) = await list_adapters(database, ME, tenant_id=site.northwind.tenant_id)
        await expect(row).to_contain_text(made.public_name)
        await person.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await row.get_by_role("button", name=f"Copy {made.public_name}").click()
        await expect(row.get_by_text("Copied")).to_be_visible()
        assert await page.evaluate("navigator.clipboard.readText()") == made.public_name

        await row.get_by_role("button", name="Delete adapter support").click()
        await dialog.get_by_role("button", name="Delete").click()
        await expect(dialog).to_contain_text("Say why")
        await dialog.get_by_label("Reason").fill("replaced")
        await dialog.get_by_role("button", name="Delete").click()
        await expect(page.get_by_text("No adapter yet.")).to_be_visible()
        assert await list_adapters(database, ME, tenant_id=site.northwind.tenant_id) == []
    finally:
        await database.close()


async def test_an_adapter_larger_than_the_limit_is_not_sent(
    person: Person, site: Site, tmp_path: Path
) -> None:
    with (tmp_path / WEIGHTS).open("wb") as large:
        large.truncate(2_000_000 + 1)
    (tmp_path / CONFIG).write_text("{}")
    await person.sign_in(site.northwind.owner)
    await person.open("/adapters")
    dialog = person.page.get_by_role("dialog")
    await person.page.get_by_role("button", name="Upload adapter").click()
    await dialog.get_by_label("Name", exact=True).fill("large")
    await dialog.get_by_label("adapter_config.json").set_input_files(tmp_path / CONFIG)
    await dialog.get_by_label("adapter_model.safetensors").set_input_files(tmp_path / WEIGHTS)
    await dialog.get_by_role("button", name="Upload").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("at most 2,000,000 are accepted")


async def test_an_import_is_seen_by_viewers_and_admins(person: Person, site: Site) -> None:
    customer = site.customers["Lumen Health"]
    await person.sign_in(customer.owner)
    await person.open("/adapters")
    page, dialog = person.page, person.page.get_by_role("dialog")
    await page.get_by_role("button", name="Import from the hub").click()
    await dialog.get_by_label("Name", exact=True).fill("triage")
    await dialog.get_by_label("Repository").fill("acme")
    take = dialog.get_by_role("button", name="Import")
    await take.click()
    await expect(dialog.get_by_role("alert")).to_contain_text("OWNER/NAME")
    await dialog.get_by_label("Repository").fill(HUB_MODEL)
    await take.click()
    await expect(dialog).to_have_count(0)
    await expect(page.locator(ROWS)).to_contain_text(f"commit {COMMIT[:12]}")

    await person.context.clear_cookies()
    await person.sign_in(customer.viewer)
    await person.open("/adapters")
    await expect(page.locator(ROWS)).to_contain_text("triage")
    for name in ("Upload adapter", "Import from the hub", "Delete adapter triage"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)
    person.expected_status.add(403)
    refused = await page.evaluate(
        "fetch('/adapters/upload', {method: 'POST', body: new FormData()}).then(answer => answer.status)"
    )
    assert refused == 403

    await person.context.clear_cookies()
    await person.sign_in(site.northwind.viewer)
    await person.open("/adapters")
    await expect(page.get_by_text("No adapter yet.")).to_be_visible()

    await person.context.clear_cookies()
    await person.sign_in(ADMIN)
    await person.open(f"/tenants/{customer.tenant_id}?tab=adapters")
    await expect(page.locator(ROWS)).to_contain_text("As its model")
    await page.get_by_role("button", name="Set price adapter triage").click()
    await expect(dialog).to_contain_text("Its organisation")
    await dialog.get_by_label("Input", exact=True).fill("0.80")
    await dialog.get_by_label("Output", exact=True).fill("0.90")
    await dialog.get_by_label("Reason", exact=True).fill("as agreed")
    await dialog.get_by_role("button", name="Save price").click()
    await expect(page.get_by_text("approval of another person")).to_be_visible()
    database = Database(site.database_url, name="test")
    try:
        await approve_all(database, "price.set")
    finally:
        await database.close()
    await page.reload()
    await expect(page.locator(ROWS)).to_contain_text("$0.80 / $0.80 / $0.90 / $0.90")
    await page.get_by_role("button", name="Delete adapter triage").click()
    await dialog.get_by_label("Reason").fill("asked by the customer")
    await dialog.get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("No adapter yet.")).to_be_visible()
