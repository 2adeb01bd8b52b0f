"""What every page works with; built once by serve.py."""

from dataclasses import dataclass

from redis.asyncio import Redis

from console.sessions import SessionStore
from core.clock import Clock
from core.db import Database
from core.settings import Settings
from scheduler.client import SchedulerClient


@dataclass(frozen=True)
class Console:
    """Database, live state and sessions of one console process."""

    database: Database
    redis: Redis
    scheduler: SchedulerClient
    sessions: SessionStore
    clock: Clock
    api_base_url: str
    """Where customers send requests, for the first-call page."""
    key_pepper: bytes
    settings: Settings
    """Limits of approval, the export store, and the way to Stripe (`billing.payments.stripe_gateway.open_gateway`)."""
