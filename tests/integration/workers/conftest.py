"""The fake cloud behind HTTP."""

import time
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestServer

from sim.digitalocean.cloud import FakeCloud
from sim.digitalocean.serve import app as cloud_app
from tests.support.fake_droplets import TOKEN, hold_to_description


@pytest.fixture
async def cloud() -> AsyncIterator[tuple[FakeCloud, str]]:
    fake = FakeCloud(TOKEN, lambda: int(time.time()))
    fake.create_s = 0
    fake.seen = hold_to_description
    server = TestServer(cloud_app(fake))
    await server.start_server()
    yield fake, str(server.make_url("")).rstrip("/")
    await server.close()
