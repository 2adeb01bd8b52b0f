"""The admin REST, with a platform admin who calls it."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from redis.asyncio import Redis

from api import app as api_app
from api.admin.deps import AdminDeps
from api.admin.routers import admin_routers
from core.db import Database
from core.settings import Settings
from tests.integration.admin.rest import Caller, token_of
from tests.support.stripe_sim import FakeStripe, fake_stripe
from tests.support.tenancy import PEPPER

__all__ = ["fake_stripe"]


@pytest.fixture(scope="module")
def routes_and_deps() -> tuple[FastAPI, AdminDeps]:
    """The admin REST and what its routes use, which `app` fills in anew: 130 routes take half a second to make."""
    app, deps = FastAPI(), AdminDeps.__new__(AdminDeps)
    for router in admin_routers(deps):
        app.include_router(router)
    api_app._install_error_handlers(app)
    return app, deps


@pytest.fixture
def app(
    routes_and_deps: tuple[FastAPI, AdminDeps],
    database: Database,
    redis_client: Redis,
    fake_stripe: FakeStripe,
    tmp_path: Path,
) -> FastAPI:
    app, deps = routes_and_deps
    settings = Settings.model_construct(
        data_dir=tmp_path, stripe_api_key=SecretStr(fake_stripe.api_key), stripe_base_url=fake_stripe.url
    )
    AdminDeps.__init__(deps, database, redis_client, PEPPER, settings=settings)
    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        yield client


@pytest.fixture
async def admin(client: httpx.AsyncClient, database: Database) -> Caller:
    return Caller(client, await token_of(database, "platform_admin"))
