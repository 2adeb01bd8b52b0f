"""Hosts from providers in the database, without a provider."""

from datetime import datetime

from core.db import Database
from core.ids import uuid7
from workers.providers.intents import Intent, IntentState
from workers.providers.store import DatabaseIntents


async def add_host(
    database: Database,
    name: str,
    created_at: datetime,
    *,
    kind: str = "gpu-h100x1-80gb",
    model: str = "m",
    price: int = 0,
    ended_at: datetime | None = None,
) -> Intent:
    """A host of DigitalOcean that runs, or has ended. `price` is in picodollars an hour."""
    intent = Intent(
        intent_id=uuid7(),
        provider="digitalocean",
        region="nyc2",
        kind=kind,
        model=model,
        name=name,
        requested_at=created_at,
        wanted=ended_at is None,
        state=IntentState.EXISTS if ended_at is None else IntentState.ENDED,
        provider_id=name,
        status="running",
        running_at=created_at,
        created_at=created_at,
        usd_pico_per_hour=price,
        billed=True,
        ended_at=ended_at,
    )
    await DatabaseIntents(database).add(intent)
    return intent
