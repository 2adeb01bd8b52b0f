"""The dependencies of every page; console/serve.py builds them once."""

from dataclasses import dataclass

from redis.asyncio import Redis

from console.sessions import SessionStore
from core.client_address import ClientAddresses
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
    """Base address of the customer API, as the home page shows it."""
    key_pepper: bytes
    settings: Settings
    """Approval limits, the export store, and Stripe's address and key."""
    addresses: ClientAddresses
    """By which failed sign-ins are counted."""
