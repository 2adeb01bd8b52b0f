"""Billing meters and their aggregates: https://docs.stripe.com/api/billing/meter."""

from hashlib import sha256

from sim.stripe import customers
from sim.stripe.errors import Obj, invalid, not_simulated, state
from sim.stripe.routes import route
from sim.stripe.sim import Sim
from sim.stripe.surface import template
from sim.stripe.views import Page, changed, matching, page

_WINDOWS = {"hour": 3600, "day": 86_400}
MINUTE = 60
"""Seconds of the smallest counting window."""


def create(sim: Sim, params: Obj) -> Obj:
    """Create a meter and return it. Raises StripeError (400) when an active one has the same event name."""
    formula = params["default_aggregation"]["formula"]
    if formula not in ("sum", "count"):
        not_simulated(f"default_aggregation[formula]={formula}")
    if params.get("event_time_window"):
        not_simulated("event_time_window")
    if by_event(sim, params["event_name"]) is not None:
        raise state(
            f"There is already an active meter with the event name {params['event_name']}.",
            "resource_already_exists", "event_name",
        )  # fmt: skip
    mapping = params.get("customer_mapping") or {"event_payload_key": "stripe_customer_id", "type": "by_id"}
    value = params.get("value_settings") or {"event_payload_key": "value"}
    made = sim.new("billing.meter", display_name=params["display_name"], event_name=params["event_name"])
    made |= {
        "default_aggregation": {"formula": formula}, "updated": sim.now(), "status": "active",
        "customer_mapping": {"event_payload_key": mapping["event_payload_key"], "type": "by_id"},
        "value_settings": {"event_payload_key": value["event_payload_key"]}, "event_time_window": None,
    }  # fmt: skip
    sim.save(made)
    sim.emit("billing.meter.created", made)
    return made


def by_event(sim: Sim, name: str) -> Obj | None:
    """Return the active meter of an event name; None when there is none."""
    for each in sim.store.all("billing.meter"):
        if each["event_name"] == name and each["status"] == "active":
            return each
    return None


def update(sim: Sim, params: Obj, id: str) -> Obj:
    """Update a meter's display name and return the meter. Raises StripeError (404) for an unknown id."""
    found = sim.find("billing.meter", id)
    changes: Obj = {"display_name": params["display_name"]} if params.get("display_name") else {}
    previous = changed(found, changes | {"updated": sim.now()})
    sim.save(found)
    sim.emit("billing.meter.updated", found, previous)
    return found


def deactivate(sim: Sim, params: Obj, id: str) -> Obj:
    """Deactivate a meter, so that it refuses events. Raises StripeError: 404 for an unknown id, 400 when
    inactive already.
    """
    del params
    return _switch(sim, id, "inactive", sim.now(), "billing.meter.deactivated")


def reactivate(sim: Sim, params: Obj, id: str) -> Obj:
    """Reactivate a meter.

    Raises StripeError: 404 for an unknown id, 400 when an active meter has the same event name.
    """
    del params
    found = sim.find("billing.meter", id)
    if by_event(sim, found["event_name"]) is not None:
        raise state("There is already an active meter with this event name.", "resource_already_exists")
    return _switch(sim, id, "active", None, "billing.meter.reactivated")


def _switch(sim: Sim, id: str, status: str, at: int | None, event: str) -> Obj:
    found = sim.find("billing.meter", id)
    if found["status"] == status:
        raise state(f"The meter is already {status}.", "billing_meter_unexpected_state")
    found |= {"status": status, "updated": sim.now(), "status_transitions": {"deactivated_at": at}}
    sim.save(found)
    sim.emit(event, found)
    return found


def retrieve(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a meter. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("billing.meter", id)


def listing(sim: Sim, params: Obj) -> Page:
    """Return meters, newest first. Raises StripeError as `page` does."""
    found = matching(sim.store.newest("billing.meter"), params, "status")
    return page(found, params, "/v1/billing/meters", "billing meter")


# Counting: one row per meter, customer and minute


def count(sim: Sim, meter: Obj, customer: str, at: int, value: int, events: int) -> None:
    """Add `value` and `events` (both negative for a cancelled event) to the minute that contains `at`."""
    minute = at - at % MINUTE
    key = f"{meter['id']}|{customer}|{minute}"
    row = sim.store.get("usage", key) or {
        "meter": meter["id"], "customer": customer, "at": minute, "sum": 0, "count": 0
    }  # fmt: skip
    row |= {"sum": row["sum"] + value, "count": row["count"] + events}
    sim.store.put("usage", key, row)


def summaries(sim: Sim, params: Obj, id: str) -> Page:
    """Return a customer's usage as one sum, or by UTC hour or day without empty windows, newest first.

    Raises StripeError: 404 for an unknown meter or customer, 400 for times that are not aligned or not in
    order.
    """
    meter = sim.find("billing.meter", id)
    customers.live(sim, params["customer"])
    start, end = params["start_time"], params["end_time"]
    window = _WINDOWS.get(params.get("value_grouping_window") or "", 0)
    step = window or MINUTE
    for name in ("start_time", "end_time"):
        if params[name] % step:
            raise invalid(
                f"{name} must be aligned with {'UTC windows' if window else 'minute'} boundaries.", name
            )
    if start >= end:
        raise invalid("end_time must be after start_time.", param="end_time")
    sums: dict[int, int] = {} if window else {start: 0}
    field = meter["default_aggregation"]["formula"]
    for row in sim.store.all("usage"):
        if row["meter"] == id and row["customer"] == params["customer"] and start <= row["at"] < end:
            key = row["at"] - row["at"] % window if window else start
            sums[key] = sums.get(key, 0) + row[field]
    made = [
        _summary(meter, params["customer"], begin, begin + window if window else end, value)
        for begin, value in sorted(sums.items(), reverse=True)
    ]
    return page(made, params, f"/v1/billing/meters/{id}/event_summaries", "meter event summary")


def _summary(meter: Obj, customer: str, start: int, end: int, value: int) -> Obj:
    mark = sha256(f"{meter['id']}|{customer}|{start}|{end}".encode()).hexdigest()[:24]
    return template("billing.meter_event_summary") | {
        "id": f"mtrusg_{mark}", "aggregated_value": value, "start_time": start, "end_time": end, "meter": meter["id"],
    }  # fmt: skip


ROUTES = [
    route("POST", "/v1/billing/meters", "billing/meter_create", create),
    route("GET", "/v1/billing/meters", "billing/meter_list", listing, "status"),
    route("GET", "/v1/billing/meters/{id}", "billing/meter_retrieve", retrieve),
    route("POST", "/v1/billing/meters/{id}", "billing/meter_update", update),
    route("POST", "/v1/billing/meters/{id}/deactivate", "billing/meter_deactivate", deactivate),
    route("POST", "/v1/billing/meters/{id}/reactivate", "billing/meter_reactivate", reactivate),
    route("GET", "/v1/billing/meters/{id}/event_summaries", "billing/meter_event_summary_list", summaries),
]
