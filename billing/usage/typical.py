"""The typical request of a model, from its usage."""

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.scoping import platform_wide

DAYS = 30
"""Days of usage that are averaged."""
MIN_REQUESTS = 100
"""Requests below which the average says little."""

_SUMS = text(
    "SELECT coalesce(sum(requests), 0)::bigint AS requests, sum(input_tokens)::bigint AS input_tokens, "
    "sum(cached_input_tokens)::bigint AS cached_tokens, sum(output_tokens)::bigint AS output_tokens "
    "FROM usage_hours WHERE model = :model AND hour >= clock_timestamp() - make_interval(days => :days)"
)


class TypicalRequest(msgspec.Struct, frozen=True):
    """Mean tokens of a request, rounded half up."""

    requests: int
    """Requests of which it is the mean."""
    input: int
    cached: int
    """Tokens of the input that came from a prefix cache."""
    output: int


@platform_wide("the price of a model is for the requests of all organisations")
async def typical_request(connection: AsyncConnection, model: str) -> TypicalRequest | None:
    """The mean request of `model` of the last DAYS days; None with fewer than MIN_REQUESTS requests or no tokens."""
    row = (await connection.execute(_SUMS, {"model": model, "days": DAYS})).one()
    if row.requests < MIN_REQUESTS or not row.input_tokens:
        return None
    count = row.requests
    prompt, cached, answer = (
        (2 * tokens + count) // (2 * count)
        for tokens in (row.input_tokens, row.cached_tokens, row.output_tokens)
    )
    return TypicalRequest(count, max(prompt, 1), min(cached, prompt), answer)
