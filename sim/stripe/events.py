"""Events and webhook endpoints: https://docs.stripe.com/api/events, webhook_endpoints."""

import fnmatch
from itertools import takewhile
from typing import Any
from urllib.parse import urlsplit

from sim.stripe.errors import Obj, invalid
from sim.stripe.params import merge_metadata
from sim.stripe.routes import route
from sim.stripe.sim import API_VERSION, Sim
from sim.stripe.views import Page, changed, page

KEPT_S = 30 * 86_400
"""Seconds for which events can be listed and retrieved."""
_MAX_ENDPOINTS = 16


def prune(sim: Sim) -> None:
    """Delete events older than 30 days."""
    oldest = sim.now() - KEPT_S
    for event in list(takewhile(lambda event: event["created"] < oldest, sim.store.kind("event").values())):
        sim.store.drop("event", event["id"])


def retrieve(sim: Sim, params: Obj, id: str) -> Obj:
    """Return an event. Raises StripeError (404) for an unknown id or an event older than 30 days."""
    del params
    prune(sim)
    return sim.find("event", id)


def listing(sim: Sim, params: Obj) -> Page:
    """Return events of the last 30 days, newest first, filtered by `types` or one `type`, which may end in `*`.

    Raises StripeError as `page` does, and 400 for `type` together with `types`.
    """
    prune(sim)
    if params.get("type") and params.get("types"):
        raise invalid("You may only specify one of these parameters: type, types.", param="types")
    found: Any = sim.store.newest("event")
    wanted = params.get("types") or ([params["type"]] if params.get("type") else [])
    if wanted:
        found = [each for each in found if matches(each["type"], wanted)]
    if "delivery_success" in params:
        found = [each for each in found if (each["pending_webhooks"] == 0) == params["delivery_success"]]
    return page(found, params, "/v1/events", "event")


def matches(type: str, wanted: list[str]) -> bool:
    """Return whether an event's type matches one of `wanted`, in which `*` is a wildcard."""
    return any(fnmatch.fnmatchcase(type, each) for each in wanted)


# Endpoints


def add_endpoint(sim: Sim, url: str, enabled_events: list[str], secret: str, **fields: Any) -> Obj:
    """Register an endpoint with a given signing secret and return it."""
    made = sim.new(
        "webhook_endpoint", url=url, enabled_events=enabled_events, status="enabled", _secret=secret
    )
    made |= {"api_version": API_VERSION, "description": None, "metadata": {}, "application": None} | fields
    return sim.save(made)


def _url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise invalid(
            "Invalid URL: An explicit scheme (such as https) must be provided.", "url", "url_invalid"
        )
    return url


def create(sim: Sim, params: Obj) -> Obj:
    """Register an endpoint and return it; only this response contains its secret.

    Raises StripeError (400) for an invalid URL or too many endpoints.
    """
    if len(sim.store.all("webhook_endpoint")) >= _MAX_ENDPOINTS:
        raise invalid(f"You have reached the maximum of {_MAX_ENDPOINTS} webhook endpoints.")
    secret = "whsec_" + sim.id("x", 32)[2:]
    made = add_endpoint(
        sim, _url(params["url"]), params["enabled_events"], secret,
        description=params.get("description"), metadata=merge_metadata(None, params.get("metadata")),
    )  # fmt: skip
    return made | {"secret": secret}


def update(sim: Sim, params: Obj, id: str) -> Obj:
    """Update or disable an endpoint and return it. Raises StripeError: 404 for an unknown id, 400 for an
    invalid URL.
    """
    found = sim.find("webhook_endpoint", id)
    changes: Obj = {name: params[name] for name in ("enabled_events", "description") if name in params}
    if params.get("url"):
        changes["url"] = _url(params["url"])
    if "disabled" in params:
        changes["status"] = "disabled" if params["disabled"] else "enabled"
    if "metadata" in params:
        changes["metadata"] = merge_metadata(found["metadata"], params["metadata"])
    changed(found, changes)
    return sim.save(found)


def retrieve_endpoint(sim: Sim, params: Obj, id: str) -> Obj:
    """Return an endpoint. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("webhook_endpoint", id)


def list_endpoints(sim: Sim, params: Obj) -> Page:
    """Return endpoints, newest first. Raises StripeError as `page` does."""
    return page(sim.store.newest("webhook_endpoint"), params, "/v1/webhook_endpoints", "webhook_endpoint")


def delete(sim: Sim, params: Obj, id: str) -> Obj:
    """Delete an endpoint. Raises StripeError (404) for an unknown id."""
    del params
    sim.find("webhook_endpoint", id)
    sim.store.drop("webhook_endpoint", id)
    return {"id": id, "object": "webhook_endpoint", "deleted": True}


ROUTES = [
    route("GET", "/v1/events", "event_list", listing, "type types created delivery_success"),
    route("GET", "/v1/events/{id}", "event_retrieve", retrieve),
    route("POST", "/v1/webhook_endpoints", "webhook_endpoint_create", create,
          "url enabled_events description metadata api_version"),
    route("GET", "/v1/webhook_endpoints", "webhook_endpoint_list", list_endpoints),
    route("GET", "/v1/webhook_endpoints/{id}", "webhook_endpoint_retrieve", retrieve_endpoint),
    route("POST", "/v1/webhook_endpoints/{id}", "webhook_endpoint_update", update,
          "url enabled_events description metadata disabled"),
    route("DELETE", "/v1/webhook_endpoints/{id}", "webhook_endpoint_delete", delete),
]  # fmt: skip
