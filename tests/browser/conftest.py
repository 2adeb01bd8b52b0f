"""Chromium against the real console. Every page is watched: no script error, no failed asset, nothing off loopback."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    async_playwright,
    expect,
)

from sim.hub import FakeHub
from tests.browser.hub import HUB_MODEL, engine_parser, hub_files
from tests.browser.seed import PASSWORD
from tests.browser.site import Site, running_site
from tests.support.services import Services

_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)

_PATIENCE_MS = 60_000
"""How long a page may take to show what a test expects, or to load: the machine may be slow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here need a browser, and those of one worker run on one event loop, since they share its Chromium."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)
            if pytest_asyncio.is_async_test(item):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def site(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The running console, seeded, with a model hub and an engine's parser; shared by all tests of the worker."""
    base = tmp_path_factory.mktemp("console")
    with FakeHub(HUB_MODEL, hub_files()).serve() as hub:
        extra = {
            "HF_ENDPOINT": hub,
            "HF_HUB_CACHE": str(base / "hub"),
            "HF_HUB_OFFLINE": "0",
            "PENSTOCK_ADAPTER_MAX_MB": "2",
            "PENSTOCK_OIDC_ALLOW_HOSTS": "127.0.0.1",
            "PENSTOCK_ENGINE_ENV": str(engine_parser(base / "engine")),
        }
        with running_site(services, base, extra=extra) as running:
            yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Headless Chromium of the system, one for each worker; every test has windows of its own."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.fail("no Chromium: install the package `chromium`")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, args=list(_ARGUMENTS), timeout=2 * _PATIENCE_MS
        )
        expect.set_options(timeout=_PATIENCE_MS)
        yield browser
        await browser.close()


class Person:
    """One browser window: signs in, goes places, remembers everything that went wrong."""

    def __init__(self, site: Site, context: BrowserContext, page: Page) -> None:
        self.site, self.context, self.page = site, context, page
        self.troubles: list[str] = []
        self.expected_status: set[int] = set()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.troubles.append(f"script error: {error}"))
        page.on("request", self._request)
        page.on("response", self._response)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.troubles.append(f"console: {message.text}")

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.hostname != "127.0.0.1":
            self.troubles.append(f"left loopback: {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected_status:
            self.troubles.append(f"{response.status}: {response.url}")

    async def sign_in(self, email: str, password: str = PASSWORD) -> None:
        """Fill the form and send it."""
        await self.page.goto(f"{self.site.url}/sign-in")
        await self.page.get_by_label("Email").fill(email)
        await self.page.get_by_label("Password").fill(password)
        await self.page.get_by_role("button", name="Sign in").click()
        await self.page.wait_for_load_state()

    async def open(self, path: str) -> Response:
        """Go to a page and wait until its socket is up, so that buttons work."""
        response = await self.page.goto(self.site.url + path)
        assert response is not None
        await self.ready()
        return response

    async def ready(self) -> None:
        """Wait until the page's socket has shaken hands."""
        if await self.page.locator("#content").count():
            await self.page.wait_for_function(
                "window.socket && window.socket.connected && window.did_handshake"
            )

    async def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        return await self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


@pytest_asyncio.fixture(loop_scope="session")
async def person(site: Site, browser: Browser) -> AsyncIterator[Person]:
    """Somebody at a desk, not signed in."""
    context = await browser.new_context(viewport={"width": 1280, "height": 860}, accept_downloads=True)
    made = Person(site, context, await context.new_page())
    yield made
    await context.close()
    assert made.troubles == []
