"""The form that adds a model: its fit before it is saved, refusals in place, its price, and its removal."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import expect

from admin import added_models, prices
from admin import models as admin_models
from core.db import Database
from tests.browser.conftest import Person
from tests.browser.hub import HUB_MODEL
from tests.browser.seed import ADMIN, FINANCE
from tests.browser.site import Site
from tests.support.tenancy import ADMIN as ME


@pytest_asyncio.fixture(loop_scope="session")
async def database(site: Site) -> AsyncIterator[Database]:
    """The site's database; afterwards no added model is offered."""
    made = Database(site.database_url, name="test")
    yield made
    for model in await admin_models.list_models(made, ME):
        if model.origin == "added" and model.status != "retired":
            await added_models.remove(made, ME, name=model.name)
    await made.close()


async def test_a_model_is_added_with_its_fit_seen_before_and_removed(
    person: Person, database: Database, tmp_path: Path
) -> None:
    await person.sign_in(ADMIN)
    await person.open("/models")
    page, dialog = person.page, person.page.get_by_role("dialog", name="Add model")
    await page.get_by_role("button", name="Add model").click()
    compute = dialog.get_by_role("button", name="Compute fit")
    await compute.click()
    await expect(dialog.get_by_role("alert")).to_contain_text("write it as ORG/NAME")
    await dialog.get_by_label("Hub id").fill(HUB_MODEL)
    await dialog.get_by_label("Kind of host").click()
    await page.get_by_role("option", name="gpu-h100x1-80gb").click()
    await expect(dialog.get_by_label("GPUs of one engine")).to_have_value("1")
    await compute.click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Use more GPUs")

    await dialog.get_by_label("Kind of host").click()
    await page.get_by_role("option", name="gpu-h100x8-640gb").click()
    gpus, arguments = (
        dialog.get_by_label("GPUs of one engine"),
        dialog.get_by_label("Arguments of the engine"),
    )
    await expect(gpus).to_have_value("8")
    await gpus.fill("2")
    await arguments.fill("max-model-len=8192\nno-such-flag=1")
    await compute.click()
    await expect(dialog.get_by_role("alert")).to_contain_text("vLLM refuses the arguments: unrecognized")
    await arguments.fill("max-model-len=8192\nkv-cache-dtype=fp8")
    await compute.click()
    await expect(dialog).to_contain_text(f"{HUB_MODEL} fits")
    await expect(dialog.locator(".badge")).to_have_text("unvalidated")
    for fact in ("4 x TP2", "8,192 tokens", "taken by the engine's parser"):
        await expect(dialog.locator(".facts")).to_contain_text(fact)

    profile = tmp_path / "river.toml"
    profile.write_text("[args]\nmax-num-seqs = 64\n[surprise]\n")
    await dialog.get_by_label("Profile (optional)").set_input_files(profile)
    add = dialog.get_by_role("button", name="Add model")
    await add.click()  # other figures than those that were seen
    await expect(dialog.get_by_role("alert")).to_contain_text("unknown field `surprise`")
    profile.write_text("[args]\nmax-num-seqs = 64\n")
    await dialog.get_by_label("Profile (optional)").set_input_files(profile)
    await add.click()
    await expect(dialog).to_contain_text(f"{HUB_MODEL} fits")
    assert [one.name for one in await admin_models.list_models(database, ME) if one.origin == "added"] == []
    await dialog.get_by_label("Input", exact=True).fill("2")
    await add.click()
    await expect(dialog).to_contain_text("Dollars per million tokens, such as 0.50.")
    await dialog.get_by_label("Output", exact=True).fill("9")
    await add.click()
    await expect(dialog).to_have_count(0)
    row = page.locator("[aria-label='Models'] tbody tr", has_text=HUB_MODEL)
    await expect(row).to_contain_text("Priced")
    (price,) = await prices.list_prices(database, ME, model=HUB_MODEL)
    assert (price.input, price.cached_input, price.output) == ("2.00", "2.00", "9.00")

    await page.get_by_role("button", name=f"Remove {HUB_MODEL}").click()
    await page.get_by_role("dialog").get_by_label("Note").fill("too slow")
    await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    await expect(row).to_contain_text("Retired")
    views = {one.name: one for one in await admin_models.list_models(database, ME)}
    assert (views[HUB_MODEL].status, views[HUB_MODEL].note) == ("retired", "too slow")


async def test_a_model_without_a_price_says_that_it_is_refused(person: Person, database: Database) -> None:
    await person.sign_in(ADMIN)
    await person.open("/models")
    page, dialog = person.page, person.page.get_by_role("dialog", name="Add model")
    await page.get_by_role("button", name="Add model").click()
    await expect(dialog).to_contain_text("Without a price the model is added, and its requests are refused.")
    await dialog.get_by_label("Hub id").fill(HUB_MODEL)
    await dialog.get_by_label("Name for customers").fill("river-next")
    await dialog.get_by_label("Kind of host").click()
    await page.get_by_role("option", name="gpu-h100x8-640gb").click()
    add = dialog.get_by_role("button", name="Add model")
    await add.click()
    await expect(dialog).to_contain_text("river-next fits")
    await add.click()
    await expect(page.get_by_text("river-next has no list price")).to_be_visible()
    row = page.locator("[aria-label='Models'] tbody tr", has_text="river-next")
    await expect(row).to_contain_text("Unpriced")


async def test_finance_adds_no_model(person: Person) -> None:
    await person.sign_in(FINANCE)
    await person.open("/models")
    await expect(person.page.get_by_role("button", name="New price")).to_be_visible()
    await expect(person.page.get_by_role("button", name="Add model")).to_have_count(0)
