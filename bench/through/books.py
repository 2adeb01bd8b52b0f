"""What the platform's usage rows say about the requests of one load: how long they waited for a replica."""

import asyncio
import time
from uuid import UUID

import asyncpg

SETTLE_TIMEOUT_S = 30.0
_WAITS = """
    SELECT count(*) AS rows, max(request_id::text) AS last,
        percentile_disc(0.5) WITHIN GROUP (ORDER BY queue_us) AS queue_p50_us,
        percentile_disc(0.99) WITHIN GROUP (ORDER BY queue_us) AS queue_p99_us,
        percentile_disc(0.5) WITHIN GROUP (ORDER BY ttft_us) AS ttft_p50_us,
        percentile_disc(0.99) WITHIN GROUP (ORDER BY ttft_us) AS ttft_p99_us
    FROM usage_rows WHERE request_id > $1
"""


class Books:
    """Reads the usage rows of one load after the other. Request ids are UUIDv7, so later requests have larger ones."""

    def __init__(self, url: str) -> None:
        """`url` is PostgreSQL's address with a login that may read `usage_rows`."""
        self._url = url
        self._last = UUID(int=0)

    def skip(self) -> None:
        """Leave out what has been settled so far."""
        asyncio.run(self._read(0))

    def waits(self, requests: int) -> dict[str, float]:
        """Wait until `requests` requests since the last call are settled; return their waits in seconds.

        `queue_p50_s` and `queue_p99_s`: for a replica. `own_ttft_p50_s` and `own_ttft_p99_s`: from receipt to the first
        content. Raises RuntimeError when they are not settled after SETTLE_TIMEOUT_S.
        """
        found = asyncio.run(self._read(requests))
        return {
            f"{name}_{percent}_s": found[f"{column}_{percent}_us"] / 1e6
            for name, column in (("queue", "queue"), ("own_ttft", "ttft"))
            for percent in ("p50", "p99")
        }

    async def _read(self, requests: int) -> asyncpg.Record:
        connection = await asyncpg.connect(self._url)
        try:
            deadline = time.monotonic() + SETTLE_TIMEOUT_S
            while (found := await connection.fetchrow(_WAITS, self._last))["rows"] < requests:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{found['rows']} of {requests} requests were settled")
                await asyncio.sleep(0.2)
        finally:
            await connection.close()
        self._last = UUID(found["last"]) if found["last"] else self._last
        return found
