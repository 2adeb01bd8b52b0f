"""Meter events, single (v1, v2) and streamed (v2), and their cancellation.

https://docs.stripe.com/api/billing/meter-event. Stripe validates v2 streams later and reports errors in an
event; the stand-in refuses an invalid batch as a whole at once.
"""

import re
from datetime import UTC, datetime
from itertools import takewhile
from typing import NamedTuple

from sim.stripe import meters
from sim.stripe.errors import Obj, StripeError, invalid, state
from sim.stripe.routes import route
from sim.stripe.sim import Sim

OLDEST_S = 35 * 86_400
"""Maximum age of a meter event's timestamp in seconds."""
NEWEST_S = 300
"""Maximum seconds by which the timestamp of a meter event may lie in the future."""
DEDUPED_S = 86_400
"""Seconds for which an identifier is remembered and an event can be cancelled."""
_MAX_BATCH = 100
_SESSION_S = 900
_VALUE = re.compile(r"\d{1,15}")
_MAX_TEXT = 100


class Event(NamedTuple):
    """A validated event."""

    meter: Obj
    customer: str
    value: int
    at: int
    identifier: str


def _check(sim: Sim, given: Obj, at: int, where: str = "") -> Event:
    """Return the validated event. Raises StripeError (400) with Stripe's codes for usage errors."""
    meter = meters.by_event(sim, given["event_name"])
    if meter is None:
        raise invalid(
            f"No active meter found for event name {given['event_name'][:100]}.",
            f"{where}event_name",
            "no_meter",
        )
    if at < sim.now() - OLDEST_S:
        raise invalid(
            "The timestamp is more than 35 days in the past.",
            f"{where}timestamp",
            "timestamp_too_far_in_past",
        )
    if at > sim.now() + NEWEST_S:
        raise invalid(
            "The timestamp is more than 5 minutes in the future.", f"{where}timestamp", "timestamp_in_future"
        )
    payload = given["payload"] if isinstance(given["payload"], dict) else {}
    customer = payload.get(meter["customer_mapping"]["event_payload_key"], "")
    known = sim.store.get("customer", customer)
    if known is None or known.get("deleted"):
        raise invalid(f"No such customer: '{customer}'", f"{where}payload", "meter_event_customer_not_found")
    text = payload.get(meter["value_settings"]["event_payload_key"], "")
    if not _VALUE.fullmatch(text):
        raise invalid(
            f"The value must be a whole number of at most 15 digits: {text[:40]!r}",
            f"{where}payload", "meter_event_invalid_value",
        )  # fmt: skip
    identifier = given.get("identifier") or sim.id("mev")
    if len(identifier) > _MAX_TEXT:
        raise invalid(f"identifier has at most {_MAX_TEXT} characters.", f"{where}identifier")
    return Event(meter, customer, int(text), at, identifier)


def _seen(sim: Sim, identifier: str) -> Obj | None:
    oldest = sim.now() - DEDUPED_S
    rows = sim.store.kind("meter_event").items()
    for key in [key for key, _ in takewhile(lambda row: row[1]["created"] < oldest, rows)]:
        sim.store.drop("meter_event", key)
    return sim.store.get("meter_event", identifier)


def _apply(sim: Sim, event: Event) -> None:
    sim.store.put("meter_event", event.identifier, {
        "created": sim.now(), "event_name": event.meter["event_name"], "customer": event.customer,
        "value": event.value, "at": event.at, "meter": event.meter["id"],
    })  # fmt: skip
    meters.count(sim, event.meter, event.customer, event.at, event.value, 1)
    sim.store.count("meter events")


def _once(sim: Sim, event: Event) -> None:
    if _seen(sim, event.identifier):
        raise state(
            f"An event already exists with identifier {event.identifier}.",
            "duplicate_meter_event",
            "identifier",
        )
    _apply(sim, event)


def create(sim: Sim, params: Obj) -> Obj:
    """Record an event (v1) and return it.

    Raises StripeError (400) for an invalid event or an identifier seen within 24 hours.
    """
    event = _check(sim, params, params.get("timestamp", sim.now()))
    _once(sim, event)
    return {
        "object": "billing.meter_event", "created": sim.now(), "event_name": params["event_name"], "livemode": False,
        "identifier": event.identifier, "payload": dict(params["payload"]), "timestamp": event.at,
    }  # fmt: skip


def _instant(sim: Sim, text: str | None, where: str = "") -> int:
    if not text:
        return sim.now()
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        raise invalid(f"Invalid timestamp: {text[:40]!r}", f"{where}timestamp") from None


def _iso(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def create_v2(sim: Sim, params: Obj) -> Obj:
    """Record an event (v2) and return it.

    Raises StripeError (400) for an invalid event or an identifier seen within 24 hours.
    """
    event = _check(sim, params, _instant(sim, params.get("timestamp")))
    _once(sim, event)
    return {
        "object": "v2.billing.meter_event", "created": _iso(sim.now()), "event_name": params["event_name"],
        "livemode": False, "identifier": event.identifier, "payload": dict(params["payload"]),
        "timestamp": _iso(event.at),
    }  # fmt: skip


def create_session(sim: Sim, params: Obj) -> Obj:
    """Return a new token for the event stream, valid for 15 minutes."""
    del params
    token = sim.id("token", 40)
    sim.store.put("meter_session", token, {"expires_at": sim.now() + _SESSION_S})
    sim.schedule(sim.now() + _SESSION_S, "meter_session.end", token)
    return {
        "object": "v2.billing.meter_event_session", "id": sim.id("mes"), "authentication_token": token,
        "created": _iso(sim.now()), "expires_at": _iso(sim.now() + _SESSION_S), "livemode": False,
    }  # fmt: skip


def end_session(sim: Sim, token: str) -> None:
    """Delete a token that has expired."""
    sim.store.drop("meter_session", token)


def stream(sim: Sim, params: Obj) -> Obj:
    """Record up to 100 events (v2 stream); events with a known identifier are ignored.

    Raises StripeError (400) for an invalid event; then no event is recorded.
    """
    given = params["events"]
    if not 1 <= len(given) <= _MAX_BATCH:
        raise invalid(f"events takes 1 to {_MAX_BATCH} events.", param="events", code="too_many_events")
    checked = [
        _check(sim, each, _instant(sim, each.get("timestamp"), f"events[{at}]."), f"events[{at}].")
        for at, each in enumerate(given)
    ]
    for event in checked:
        if not _seen(sim, event.identifier):
            _apply(sim, event)
    return {}


def _cancel(sim: Sim, event_name: str, identifier: str) -> None:
    found = _seen(sim, identifier)
    if found is None or found["event_name"] != event_name:
        raise StripeError(
            f"No event with identifier {identifier} within the last 24 hours.", status=404, code="resource_missing",
            param="cancel[identifier]",
        )  # fmt: skip
    if not found.get("canceled"):
        found["canceled"] = True
        sim.store.put("meter_event", identifier, found)
        meters.count(
            sim,
            sim.find("billing.meter", found["meter"]),
            found["customer"],
            found["at"],
            -found["value"],
            -1,
        )


def adjust(sim: Sim, params: Obj) -> Obj:
    """Cancel an event of the last 24 hours (v1) and return the adjustment.

    Raises StripeError: 404 for an unknown identifier, 400 for a missing one.
    """
    identifier = (params.get("cancel") or {}).get("identifier")
    if not identifier:
        raise invalid(
            "Missing required param: cancel[identifier].", "cancel[identifier]", "parameter_missing"
        )
    _cancel(sim, params["event_name"], identifier)
    return {
        "object": "billing.meter_event_adjustment", "cancel": {"identifier": identifier}, "livemode": False,
        "event_name": params["event_name"], "status": "complete", "type": "cancel",
    }  # fmt: skip


def adjust_v2(sim: Sim, params: Obj) -> Obj:
    """Cancel an event of the last 24 hours (v2) and return the adjustment.

    Raises StripeError (404) for an unknown identifier.
    """
    identifier = params["cancel"]["identifier"]
    _cancel(sim, params["event_name"], identifier)
    return {
        "object": "v2.billing.meter_event_adjustment", "id": sim.id("mea"), "created": _iso(sim.now()),
        "cancel": {"identifier": identifier}, "event_name": params["event_name"], "livemode": False,
        "status": "complete", "type": "cancel",
    }  # fmt: skip


ACTIONS = {"meter_session.end": end_session}
ROUTES = [
    route("POST", "/v1/billing/meter_events", "billing/meter_event_create", create),
    route("POST", "/v1/billing/meter_event_adjustments", "billing/meter_event_adjustment_create", adjust),
    route("POST", "/v2/billing/meter_events", "v2/billing/meter_event_create", create_v2),
    route("POST", "/v2/billing/meter_event_session", "v2/billing/meter_event_session_create", create_session),
    route("POST", "/v2/billing/meter_event_stream", "v2/billing/meter_event_stream_create", stream),
    route(
        "POST", "/v2/billing/meter_event_adjustments", "v2/billing/meter_event_adjustment_create", adjust_v2
    ),
]
