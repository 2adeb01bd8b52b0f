"""The rollouts of the models page: begun by a form, compared, promoted and aborted."""

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from admin import rollouts
from core.db import Database
from tests.browser.conftest import Person
from tests.browser.seed import ADMIN, FINANCE, MODEL
from tests.browser.site import Site
from tests.support.scheduling import agent, replica
from tests.support.tenancy import ADMIN as ME
from tests.support.waiting import until
from workers.engine_spec import EngineSpec
from workers.rollouts import (
    Progress,
    RolloutState,
    RolloutUpdate,
    Strategy,
    VersionFigures,
    add_rollout,
    write_updates,
)

NEW = EngineSpec(engine_version="0.34.0")
FIGURES = Progress(
    4, 4, 1, 4,
    (),
    VersionFigures("", 5_212, 5_212, 3, 0.0006, 0.212, 0.0138, 180.0),
    VersionFigures(NEW.version, 604, 604, 13, 0.0215, 0.187, 0.0121, 184.0),
)  # fmt: skip


async def rolled_back(database: Database) -> None:
    """A rollout that has ended, as a scheduler leaves it."""
    why = "the new version is worse: 13 of its 604 requests failed (2.2%), before 0.1%"
    async with database.system() as connection:
        made = await add_rollout(connection, MODEL, EngineSpec(), NEW, Strategy(canary_percent=10), "faster")
        update = RolloutUpdate(made.rollout_id, made.state, RolloutState.ROLLED_BACK, why, FIGURES)
        await write_updates(connection, [update], 10**6)


@pytest_asyncio.fixture(loop_scope="session")
async def database(site: Site) -> AsyncIterator[Database]:
    """The site's database."""
    made = Database(site.database_url, name="test")
    yield made
    await made.close()


async def test_a_canary_is_begun_promoted_and_aborted(site: Site, person: Person, database: Database) -> None:
    pool = [replica(f"host-1/tiny-{number}", model=MODEL, deploys=True) for number in range(2)]
    async with agent(site.scheduler_port, *pool):
        await person.sign_in(ADMIN)
        await person.open("/models")
        page, dialog = person.page, person.page.get_by_role("dialog")
        await page.get_by_role("button", name="New rollout").click()
        await dialog.get_by_label("Model").click()
        await page.get_by_role("option", name=MODEL).click()
        await dialog.get_by_label("Engine version").fill("0.33.0")
        await dialog.get_by_label("Arguments").fill("max-num-seqs=64")
        await dialog.get_by_label("Canary, % of organisations").fill("200")
        await dialog.get_by_label("Reason").fill("faster prefill")
        await dialog.get_by_role("button", name="Begin").click()
        await expect(page.get_by_text("canary_percent is 200, must be 0 to 100")).to_be_visible()
        await dialog.get_by_label("Canary, % of organisations").fill("10")
        await dialog.get_by_role("button", name="Begin").click()
        row = page.locator("[aria-label='Rollouts'] tbody tr").first
        await expect(row).to_contain_text("Canary")
        made = await rollouts.last_rollout(database, ME, model=MODEL)
        assert (made.new_spec, made.strategy.canary_percent) == (
            {"engine_version": "0.33.0", "args": {"max-num-seqs": 64}}, 10
        )  # fmt: skip
        await page.get_by_role("button", name=f"Promote {MODEL}").click()
        await dialog.get_by_label("Reason").fill("no regression")
        await dialog.get_by_role("button", name="Promote").click()
        await expect(row).to_contain_text("Progressing")
        await page.get_by_role("button", name=f"Abort {MODEL}").click()
        await dialog.get_by_label("Reason").fill("answers are too long")
        await dialog.get_by_role("button", name="Abort").click()
        await expect(row).to_contain_text("answers are too long")

        async def ended() -> bool:
            return (await rollouts.last_rollout(database, ME, model=MODEL)).state == "rolled_back"

        await until(ended)  # by the scheduler, since no replica has the new version


@pytest.mark.parametrize("width", [1440, 400])
async def test_finance_sees_what_requests_saw_of_both_versions(
    site: Site, browser: Browser, database: Database, width: int
) -> None:
    await rolled_back(database)
    context = await browser.new_context(viewport={"width": width, "height": 1000})
    person = Person(site, context, await context.new_page())
    await person.sign_in(FINANCE)
    await person.open("/models")
    row = person.page.locator("[aria-label='Rollouts'] tbody tr").first
    for shown in (
        "Rolled back",
        "13 of its 604 requests failed",
        "1 / 4",
        "5,212",
        "2.2%",
        "187 ms",
        "212 ms",
    ):
        await expect(row).to_contain_text(shown)
    await expect(person.page.get_by_role("button", name="New rollout")).to_have_count(0)
    assert await person.overflow() <= 0
    if where := os.environ.get("PENSTOCK_SCREENSHOTS"):
        await person.page.screenshot(path=f"{where}/rollouts-{width}.png", full_page=True)
    await context.close()
    assert person.troubles == []
