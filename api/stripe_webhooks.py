"""POST /webhooks/stripe: verify an event, store it, answer. A job applies the event (billing/payments/events.py).

The signature over the raw bytes is verified before anything else. Afterwards only the event's id, its type and the id
of its object are used. The job fetches the object from Stripe, so that no request waits for Stripe here.
"""

import msgspec
from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import DBAPIError

from api.errors import body_too_large
from billing.payments import events, signature
from billing.payments.stripe_types import parse_event
from core.clock import Clock
from core.db import Database
from core.errors import InvalidRequest, NotFound, Unavailable
from core.settings import Settings

MAX_BODY_BYTES = 1024 * 1024
"""Bytes of an event; those of large invoices have a few hundred kB."""


def router(database: Database, settings: Settings, clock: Clock) -> APIRouter:
    """The route. STRIPE_WEBHOOK_SECRET may contain several secrets, separated by commas, during a rotation."""
    routes = APIRouter(tags=["webhooks"])
    given = settings.stripe_webhook_secret.get_secret_value().split(",")
    secrets = tuple(secret for part in given if (secret := part.strip()))

    @routes.post("/webhooks/stripe", include_in_schema=False)
    async def receive(request: Request) -> Response:
        if not secrets:
            raise NotFound("no webhooks are taken here: STRIPE_WEBHOOK_SECRET is not set")
        body = await _read(request)
        header = request.headers.get("stripe-signature", "")
        signature.verify(body, header, secrets, int(clock.now().timestamp()))
        event = parse_event(_decode(body))
        if event is None:
            raise InvalidRequest("the body is no event of Stripe", code="webhook_body")
        try:
            async with database.system() as connection:
                new = await events.record(connection, event, "webhook")
        except (DBAPIError, OSError) as error:
            raise Unavailable("the event cannot be stored at the moment", retry_after_s=5.0) from error
        return Response(
            b'{"received": true}' if new else b'{"received": false}', media_type="application/json"
        )

    return routes


async def _read(request: Request) -> bytes:
    """Return the raw body. Raises RequestTooLarge as soon as it exceeds MAX_BODY_BYTES."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise body_too_large(MAX_BODY_BYTES)
        parts.append(part)
    return b"".join(parts)


def _decode(body: bytes) -> dict[str, object]:
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("the body is no JSON object", code="webhook_body") from None
