"""The connections of an API process to PostgreSQL, apart by purpose, so that work of one purpose waits for no other.

The hot path has connections of its own besides (billing/metering/dedicated_connection.py).
"""

from core.db import BATCH, Database
from tenants.keys import MAX_LOOKUPS_RUNNING


class Pools:
    """One pool per purpose, by which PostgreSQL names its connections. It opens them when they are first needed."""

    def __init__(self, url: str) -> None:
        self.key_feed = Database(url, name="penstock-api-key-feed", pool_size=1, max_overflow=0)
        """Changes of tenancy, revocations among them."""
        self.revocations = Database(url, name="penstock-api-revocations", pool_size=2, max_overflow=0)
        """Acts that revoke a key or suspend an organisation, and checks of admin tokens. Nothing that takes long."""
        self.keys = Database(url, name="penstock-api-keys", pool_size=MAX_LOOKUPS_RUNNING, max_overflow=0)
        """Look-ups of keys."""
        self.models = Database(url, name="penstock-api-models", pool_size=2, max_overflow=0)
        """What is read into memory: models, prices, the day's tokens."""
        self.customers = Database(url, name="penstock-api-customers", pool_size=4, max_overflow=0)
        """Usage, receipts and statements that customers read, and what members change in their organisation."""
        self.responses = Database(url, name="penstock-api-responses", pool_size=4, max_overflow=0)
        """Stored responses, which inference reads and writes."""
        self.exports = Database(url, name="penstock-api-exports", pool_size=2, max_overflow=0, timeouts=BATCH)
        """Reports and downloads, which take long."""
        self.admin = Database(url, name="penstock-api-admin")
        """The other administrative acts, and webhooks."""

    async def close(self) -> None:
        """Close every connection."""
        for database in vars(self).values():
            await database.close()
