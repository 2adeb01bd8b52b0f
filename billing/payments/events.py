"""Stripe's events: recorded once and applied once, in any order.

Table stripe_events is the queue. The webhook only verifies and records an event. A job fetches the event's object and
applies its book update, with the mark that the event is applied, in one transaction. Events that no webhook delivered
are found by listing.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.notifications import notices
from billing.payments.book_updates import BookUpdate, UpdateOutcome, apply_update, no_change, not_ours
from billing.payments.customers import refresh_cards
from billing.payments.disputes import prepare_dispute
from billing.payments.invoices import prepare_invoice
from billing.payments.payments import prepare_payment
from billing.payments.refunds import NOTE_KEY, prepare_refund
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_transport import TooManyRows
from billing.payments.stripe_types import Event
from billing.payments.topups import prepare_session
from core.db import Database
from core.errors import NotFound, PenstockError, Unavailable

log = logging.getLogger(__name__)

OVERLAP_S = 3600
"""Seconds before the newest recorded event that are listed again."""
LISTING_WINDOW_S = 30 * 86_400 - 3600
"""Seconds for which Stripe lists events."""
SLICE_S = 86_400
"""Seconds of events listed and recorded at a time, at most."""
MAX_SLICE_EVENTS = 5000
"""A slice with more events is halved, because Stripe lists the newest first."""
BATCH = 100
"""Events applied in one run at most."""
ALARM_AFTER = 5
"""Failures of one event after which operators are notified."""

Prepare = Callable[[Database, StripeGateway, str], Awaitable[BookUpdate]]


async def _payment(database: Database, gateway: StripeGateway, object_id: str) -> BookUpdate:
    return await prepare_payment(gateway, object_id)


async def _charge(database: Database, gateway: StripeGateway, object_id: str) -> BookUpdate:
    intent = await gateway.payment_intent_of_charge(object_id)
    return not_ours if intent is None else await prepare_payment(gateway, intent)


async def _refund(database: Database, gateway: StripeGateway, object_id: str) -> BookUpdate:
    return await prepare_refund(gateway, object_id)


async def _dispute(database: Database, gateway: StripeGateway, object_id: str) -> BookUpdate:
    return await prepare_dispute(gateway, object_id)


async def _invoice(database: Database, gateway: StripeGateway, object_id: str) -> BookUpdate:
    return await prepare_invoice(gateway, object_id)


async def _invoice_payment(database: Database, gateway: StripeGateway, object_id: str) -> BookUpdate:
    return await prepare_invoice(gateway, await gateway.invoice_of_payment(object_id))


async def _customer(database: Database, gateway: StripeGateway, object_id: str) -> BookUpdate:
    await refresh_cards(database, gateway, object_id)
    return no_change


async def _credit_note(database: Database, gateway: StripeGateway, object_id: str) -> BookUpdate:
    """Notify operators of a credit note that was made in Stripe on one of our invoices: the books do not have it."""
    note = await gateway.credit_note(object_id)
    if NOTE_KEY in note.metadata:
        return no_change

    async def update(connection: AsyncConnection) -> UpdateOutcome:
        known = await connection.execute(
            text("SELECT tenant_id FROM invoices WHERE stripe_invoice_id = :id"), {"id": note.invoice}
        )
        tenant_id = known.scalar_one_or_none()
        if tenant_id is None:
            return "foreign"
        await _notify_operators(
            connection, tenant_id, "A credit note was made in Stripe",
            f"{note.id} on {note.invoice} is not in our books: void it and correct the month here.", note.id,
        )  # fmt: skip
        return "applied"

    return update


async def _meter(database: Database, gateway: StripeGateway, object_id: str) -> BookUpdate:
    """Notify operators that Stripe refused meter events; the reconciliation names the customers that differ."""

    async def update(connection: AsyncConnection) -> UpdateOutcome:
        await _notify_operators(
            connection, None, "Stripe's meter refused events",
            f"The meter {object_id} reports errors; `penstock payments reconcile` names the customers.", object_id,
        )  # fmt: skip
        return "applied"

    return update


HANDLERS: dict[str, Prepare] = {
    "payment_intent": _payment,
    "charge": _charge,
    "refund": _refund,
    "dispute": _dispute,
    "invoice": _invoice,
    "invoice_payment": _invoice_payment,
    "checkout.session": prepare_session,
    "customer": _customer,
    "credit_note": _credit_note,
    "billing.meter": _meter,
}
"""Prepares the book update by kind of object; events of other kinds are recorded and ignored."""
_IGNORED = frozenset({"billing.meter.created", "billing.meter.updated"})


async def record(connection: AsyncConnection, event: Event, found_by: str) -> bool:
    """Record an event; returns whether it is new. `found_by` is `webhook` or `list`.

    An event of a kind without a handler is recorded as ignored.
    """
    wanted = event.object_kind in HANDLERS and bool(event.object_id) and event.type not in _IGNORED
    made = await connection.execute(
        text(
            "INSERT INTO stripe_events (id, type, object_kind, object_id, created_at, found_by, outcome, applied_at) "
            "VALUES (:id, :type, :kind, :object, to_timestamp(:at), :by, "
            "CASE WHEN NOT :wanted THEN 'ignored' END, CASE WHEN NOT :wanted THEN clock_timestamp() END) "
            "ON CONFLICT (id) DO NOTHING RETURNING id"
        ),
        {
            "id": event.id,
            "type": event.type,
            "kind": event.object_kind,
            "object": event.object_id,
            "at": event.created_at,
            "by": found_by,
            "wanted": wanted,
        },
    )
    return made.one_or_none() is not None


async def count_due(connection: AsyncConnection) -> int:
    """The number of events that are due."""
    found = await connection.execute(
        text("SELECT count(*) FROM stripe_events WHERE applied_at IS NULL AND next_at <= clock_timestamp()")
    )
    return int(found.scalar_one())


async def apply_due(database: Database, gateway: StripeGateway, *, budget_s: float = 20.0) -> int:
    """Apply at most BATCH due events, oldest first, for about `budget_s` seconds; returns how many were applied.

    A failed event is tried again later. When Stripe does not answer, the run ends.
    """
    async with database.read() as connection:
        rows = (
            await connection.execute(
                text(
                    "SELECT id, type, object_kind, object_id FROM stripe_events WHERE applied_at IS NULL "
                    "AND next_at <= clock_timestamp() ORDER BY created_at, received_at, id LIMIT :limit"
                ),
                {"limit": BATCH},
            )
        ).all()
    ends_s = time.monotonic() + budget_s
    applied = 0
    for row in rows:
        try:
            applied += await _apply(database, gateway, row)
        except Unavailable as error:
            await _schedule_retry(database, row, error)
            break
        except PenstockError as error:
            await _schedule_retry(database, row, error)
        except Exception as error:
            # An object that cannot be parsed or booked must not stop later events; operators are notified of it.
            log.exception("event %s (%s) of %s cannot be applied", row.id, row.type, row.object_id)
            await _schedule_retry(
                database, row, PenstockError(f"{type(error).__name__}; the log of the jobs has more")
            )
        if time.monotonic() > ends_s:
            break
    return applied


async def _apply(database: Database, gateway: StripeGateway, row: Row[Any]) -> bool:
    try:
        update = await HANDLERS[row.object_kind](database, gateway, row.object_id)
    except NotFound:
        update = no_change  # the object was deleted since
    return await apply_update(database, _with_mark(row.id, update)) != "ignored"


def _with_mark(event_id: str, update: BookUpdate) -> BookUpdate:
    """`update` together with the mark that the event is applied; ignored when it is marked already."""

    async def both(connection: AsyncConnection) -> UpdateOutcome:
        found = await connection.execute(
            text("SELECT applied_at FROM stripe_events WHERE id = :id FOR UPDATE"), {"id": event_id}
        )
        if found.scalar_one() is not None:
            return "ignored"
        outcome = await update(connection)
        await connection.execute(
            text(
                "UPDATE stripe_events SET outcome = :outcome, applied_at = clock_timestamp(), error = NULL "
                "WHERE id = :id"
            ),
            {"outcome": outcome, "id": event_id},
        )
        return outcome

    return both


async def _schedule_retry(database: Database, row: Row[Any], error: PenstockError) -> None:
    """Delay the event's next attempt: 2 s, 4 s, ... up to an hour. Notifies operators once, after ALARM_AFTER."""
    async with database.system() as connection:
        found = await connection.execute(
            text(
                "UPDATE stripe_events SET attempts = attempts + 1, error = :error, next_at = clock_timestamp() "
                "+ make_interval(secs => least(3600, 1 << least(attempts + 1, 12))) WHERE id = :id RETURNING attempts"
            ),
            {"error": error.message[:500], "id": row.id},
        )
        if found.scalar_one() >= ALARM_AFTER:
            await _notify_operators(
                connection, None, f"Stripe's event {row.type} cannot be applied",
                f"{row.id} on {row.object_id}: {error.message[:500]}", row.id,
            )  # fmt: skip


async def _notify_operators(
    connection: AsyncConnection, tenant_id: UUID | None, subject: str, body: str, object_id: str
) -> None:
    await notices.notify(
        connection,
        tenant_id=None,
        kind="stripe.event",
        subject=subject,
        body=body,
        facts={"object": object_id, "tenant_id": None if tenant_id is None else str(tenant_id)},
        key=f"stripe-event-{object_id}",
    )


async def record_missed(database: Database, gateway: StripeGateway) -> int:
    """List the events since the newest recorded one, less OVERLAP_S, and record the missing ones; returns how many.

    Works in slices from the oldest on, each in a transaction, so that a failed run keeps its progress. Raises
    Unavailable when Stripe does not answer, TooManyRows when a single second has too many events.
    """
    async with database.read() as connection:
        row = (
            await connection.execute(
                text(
                    "SELECT extract(epoch FROM clock_timestamp())::bigint AS now, "
                    "greatest(extract(epoch FROM events_seen_at) - :overlap, "
                    "extract(epoch FROM clock_timestamp()) - :reach)::bigint AS since FROM stripe_state"
                ),
                {"overlap": OVERLAP_S, "reach": LISTING_WINDOW_S},
            )
        ).one()
    since, width, found = int(row.since), SLICE_S, 0
    while True:
        before = since + width if since + width < row.now else None
        listed, before = await _list_slice(gateway, since, before, row.now)
        found += await _record_slice(database, listed, None if before is None else min(before, row.now))
        if before is None:
            return found
        since, width = before, min(SLICE_S, 2 * (before - since))


async def _list_slice(
    gateway: StripeGateway, since: int, before: int | None, now: int
) -> tuple[list[Event], int | None]:
    """The events of [since, before) (Unix seconds; None = until now), and the end of what was listed.

    The slice is halved while it has more than MAX_SLICE_EVENTS. Raises TooManyRows as `record_missed`.
    """
    while before != since + 1:
        try:
            return await gateway.events(since, before, at_most=MAX_SLICE_EVENTS), before
        except TooManyRows:
            ends = before or (
                now if now > since + 1 else since + SLICE_S
            )  # Stripe's clock may be ahead of ours
            before = since + (ends - since) // 2
    return await gateway.events(since, before), before


async def _record_slice(database: Database, listed: list[Event], ended_at: int | None) -> int:
    """Record a slice's events and the instant up to which all are recorded; returns how many are new."""
    seen_at = listed[-1].created_at if listed else ended_at
    found = 0
    async with database.system() as connection:
        for event in listed:
            found += await record(connection, event, "list")
        if seen_at is not None:
            await connection.execute(
                text("UPDATE stripe_state SET events_seen_at = greatest(events_seen_at, to_timestamp(:at))"),
                {"at": seen_at},
            )
    return found
