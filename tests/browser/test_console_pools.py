"""The pools page while requests wait: queues, who is in them, and what the autoscaler would do."""

import asyncio
import re

import pytest
from playwright.async_api import Browser, expect
from sqlalchemy import text

from core.db import Database
from tests.browser.conftest import Person
from tests.browser.seed import ADMIN, FINANCE, MODEL
from tests.browser.site import Site
from tests.support.scheduling import agent, client, replica, request
from tests.support.waiting import until
from workers.acting.plan import Mode, PoolAct
from workers.acting.store import add_acts
from workers.host_credentials import read_credentials
from workers.join_token import parse_token
from workers.weights_manifest import PrefetchLine, progress_text
from workers.wire import AcceptanceFinding, AcceptanceReport, ReplicaState


async def refuse_a_host(site: Site, reason: str) -> None:
    """Write down that a host was not created."""
    database = Database(site.database_url)
    async with database.system() as connection:
        act = PoolAct(MODEL, "local/here/gpu", "create", reason, Mode.ON, "refused", "no money")
        await connection.execute(text("DELETE FROM pool_acts"))
        await add_acts(connection, [act])
    await database.close()


@pytest.mark.parametrize("width", [1280, 400])
async def test_queues_tenants_and_the_plan_are_shown_as_they_are(
    site: Site, browser: Browser, width: int
) -> None:
    context = await browser.new_context(viewport={"width": width, "height": 900})
    person = Person(site, context, await context.new_page())
    busy, modest = site.northwind, site.customers["Lumen Health"]
    async with (
        agent(site.scheduler_port, replica("host-1/tiny-0", slots=1, model=MODEL)),
        client(site.scheduler_port) as api,
    ):
        await until(lambda: any(one.replica_id == "host-1/tiny-0" for one in api.snapshot().replicas))
        first = await api.place(request(tenant=str(busy.tenant_id), model=MODEL))
        waiting = [
            asyncio.create_task(api.place(request(tenant=str(tenant_id), model=MODEL, deadline_s=60.0)))
            for tenant_id in (busy.tenant_id, busy.tenant_id, modest.tenant_id)
        ]
        await person.sign_in(ADMIN)
        await person.open("/pools")
        page = person.page
        queue = page.locator("[aria-label='Queues'] tbody tr", has_text=MODEL)
        await expect(queue).to_contain_text("standard 3 for")
        await expect(page.locator(".stat", has_text="Waiting in queue")).to_contain_text("oldest for")
        rows = page.locator("[aria-label='Tenants in the queues'] tbody tr")
        mine = rows.filter(has_text=busy.name)
        await expect(mine.locator("td").nth(2)).to_have_text("2")
        await expect(mine.locator("td").nth(3)).to_have_text("1")
        await expect(rows.filter(has_text=modest.name).locator("td").nth(2)).to_have_text("1")
        plan = page.locator("[aria-label='Autoscaler'] tbody tr", has_text=MODEL)
        await expect(plan).to_be_visible()
        await refuse_a_host(site, f"more load {width}")
        act = page.locator("[aria-label='Timeline'] tbody tr", has_text=f"more load {width}")
        await expect(act).to_contain_text("Refused", timeout=30_000)
        await expect(act).to_contain_text("no money")
        assert await person.overflow() <= 0
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await expect(queue).not_to_contain_text("standard 3 for")
        assert first.replica_id == "host-1/tiny-0"
    await context.close()
    assert person.troubles == []


async def test_a_host_shows_what_its_checks_found_and_what_it_registered(
    site: Site, browser: Browser
) -> None:
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    person = Person(site, context, await context.new_page())
    async with agent(site.scheduler_port, name="gpu-host") as host:
        host.address, host.version = "10.0.0.7", "9.8.7"
        host.acceptance = AcceptanceReport(
            "degraded",
            1_800_000_000_000,
            [
                AcceptanceFinding("degraded", "pcie", "GPU 5 uses 8 of 16 PCIe lanes"),
                AcceptanceFinding("note", "dcgm", "DCGM is not installed or was not run"),
            ],
        )
        await person.sign_in(ADMIN)
        await person.open("/pools")
        row = person.page.locator("[aria-label='Hosts'] tbody tr", has_text="gpu-host")
        await expect(row).to_contain_text("Degraded")
        await expect(row).to_contain_text("GPU 5 uses 8 of 16 PCIe lanes")
        await expect(row).not_to_contain_text("DCGM")
        await expect(row).to_contain_text("10.0.0.7")
        await expect(row).to_contain_text("agent 9.8.7")
        await expect(row.locator("td").nth(5)).to_contain_text(re.compile("just now|min ago"))
        assert await person.overflow() <= 0
    await context.close()
    assert person.troubles == []


@pytest.mark.parametrize("width", [1440, 1024, 400])
async def test_a_replica_shows_how_far_its_weights_are(site: Site, browser: Browser, width: int) -> None:
    context = await browser.new_context(viewport={"width": width, "height": 900})
    person = Person(site, context, await context.new_page())
    loading = replica(
        "host-1/tiny-0",
        model=MODEL,
        state=ReplicaState.LOADING,
        phase="prefetching",
        detail=progress_text(PrefetchLine("verify", 385_000_000_000, 404_000_000_000)),
        weights_done_bytes=385_000_000_000,
        weights_total_bytes=404_000_000_000,
    )
    async with agent(site.scheduler_port, loading) as host:
        await person.sign_in(ADMIN)
        await person.open("/pools")
        row = person.page.locator("[aria-label='Replicas'] tbody tr", has_text="host-1/tiny-0")
        await expect(row.locator(".badge")).to_have_text("Prefetching")
        await expect(row).to_contain_text("checking the weights: 385.0 of 404.0 GB (95 %)")
        bar = row.locator("td", has_text="Prefetching").locator(".bar")
        await expect(bar).not_to_have_class(re.compile("bad"))
        await expect(bar.locator("i")).to_have_attribute("style", re.compile(r"width: 95\.2"))
        assert await person.overflow() <= 0
        host.replicas = [replica("host-1/tiny-0", model=MODEL, state=ReplicaState.LOADING, phase="loading")]
        await expect(row.locator(".badge")).to_have_text("Loading")
        await expect(bar).to_have_count(0)
    await context.close()
    assert person.troubles == []


async def test_invite_a_host_and_revoke_it(person: Person, site: Site) -> None:
    await person.sign_in(ADMIN)
    await person.open("/pools")
    page, dialog = person.page, person.page.get_by_role("dialog")
    await page.get_by_role("button", name="Invite host").click()
    await dialog.get_by_label("Host").fill("b300-7")
    await dialog.get_by_role("button", name="Create token").click()
    await expect(dialog.get_by_text("Say why")).to_be_visible()
    await dialog.get_by_label("Reason").fill("rack 7")
    await dialog.get_by_role("button", name="Create token").click()
    token = await page.locator(".secret code").inner_text()
    secret = parse_token(token, "the dialog").secret
    await person.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await dialog.get_by_role("button", name="Copy").click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == token
    await page.get_by_role("button", name="I have stored it").click()
    await expect(page.get_by_text(secret)).to_have_count(0)
    await page.reload()
    await person.ready()
    assert secret not in await page.content()

    row = page.locator("[aria-label='Invitations'] tbody tr", has_text="b300-7")
    await expect(row).to_contain_text("Invited")
    await expect(row).to_contain_text(re.compile(r"in \d+ min"))
    assert await person.overflow() <= 0
    await row.get_by_role("button", name="Revoke").click()
    await dialog.get_by_label("Reason").fill("sold")
    await dialog.get_by_role("button", name="Revoke").click()
    await expect(row).to_have_count(0)
    database = Database(site.database_url)
    async with database.system() as connection:
        credential = (await read_credentials(connection))["b300-7"]
    await database.close()
    assert credential.revoked_at is not None


async def test_enter_a_contract_for_hosts_and_end_it(person: Person) -> None:
    await person.sign_in(ADMIN)
    await person.open("/pools")
    page, dialog = person.page, person.page.get_by_role("dialog")
    await page.get_by_role("button", name="Add contract").click()
    await dialog.get_by_label("Kind of host").fill("gpu-h100x8-640gb")
    await dialog.get_by_label("Number of hosts").fill("two")
    await dialog.get_by_label("Dollars per hour").fill("30.25")
    await dialog.get_by_label("Where it stands").fill("contract 17")
    await dialog.get_by_label("Reason").fill("signed")
    await dialog.get_by_role("button", name="Add contract").click()
    await expect(page.get_by_text("must be a whole number, not 'two'")).to_be_visible()
    await dialog.get_by_label("Number of hosts").fill("2")
    await dialog.get_by_role("button", name="Add contract").click()
    row = page.locator("[aria-label='Contracts for hosts'] tbody tr", has_text="contract 17")
    await expect(row).to_contain_text("Running")
    await expect(row).to_contain_text("30.25")
    await expect(row).to_contain_text("open")
    assert await person.overflow() <= 0
    await row.get_by_role("button", name="End").click()
    await dialog.get_by_label("Until").fill("2099-01-01")
    await dialog.get_by_label("Reason").fill("not renewed")
    await dialog.get_by_role("button", name="End contract").click()
    await expect(row).to_contain_text("2099-01-01 00:00 UTC")


async def test_finance_sees_invitations_and_contracts_and_makes_none(person: Person) -> None:
    await person.sign_in(FINANCE)
    await person.open("/pools")
    await expect(person.page.locator("[aria-label='Contracts for hosts']")).to_be_visible()
    await expect(person.page.get_by_role("button", name="Add contract")).to_have_count(0)
    await expect(person.page.locator("[aria-label='Invitations']")).to_be_visible()
    await expect(person.page.get_by_role("button", name="Invite host")).to_have_count(0)
