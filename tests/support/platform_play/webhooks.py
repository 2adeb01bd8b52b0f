"""The platform's webhook endpoint, served in the play's loop for the local Stripe to post to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr

from api.app import _install_error_handlers
from api.stripe_webhooks import router
from core.clock import Clock
from core.db import Database
from core.settings import Settings
from tests.support.ports import listening
from tests.support.stripe_sim import SECRET
from tests.support.waiting import until


@asynccontextmanager
async def endpoint(database: Database, clock: Clock) -> AsyncIterator[str]:
    """Serve POST /webhooks/stripe; yields its URL."""
    app = FastAPI()
    app.include_router(
        router(database, Settings.model_construct(stripe_webhook_secret=SecretStr(SECRET)), clock)
    )
    _install_error_handlers(app)
    listener = listening()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started or serving.done())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/webhooks/stripe"
    finally:
        server.should_exit = True
        await serving
