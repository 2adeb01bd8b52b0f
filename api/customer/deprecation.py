"""What an answer and a model's entry say about the end of a model: RFC 9745 (Deprecation), RFC 8594 (Sunset), RFC 5829.

The headers come with every answer to a request that names the model, refusals included.
"""

from collections.abc import Collection
from email.utils import formatdate
from typing import Any, Protocol
from urllib.parse import quote

from gateway.ports import Headers
from workers.model_life import Deprecation


class Endings(Protocol):
    """The methods of workers.models.ModelDirectory that are used here."""

    def deprecation(self, name: str, allowed: Collection[str] | None = None) -> Deprecation | None:
        """Return the end of a name, for a key that may use the models `allowed` (None = all)."""


def deprecation_headers(told: Deprecation) -> Headers:
    """Since when the model is deprecated, from when it is retired, and where its successor is described."""
    headers: Headers = []
    if told.deprecated_at is not None:
        headers.append((b"deprecation", b"@%d" % told.deprecated_at.timestamp()))
    if told.retires_at is not None:
        headers.append((b"sunset", formatdate(told.retires_at.timestamp(), usegmt=True).encode()))
    if told.replacement is not None:
        successor = quote(told.replacement, safe="/")
        headers.append((b"link", f'</v1/models/{successor}>; rel="successor-version"'.encode()))
    return headers


def deprecation_block(told: Deprecation | None) -> dict[str, Any] | None:
    """The member `deprecation` of a model's entry, with Unix times; None for a model that stays."""
    if told is None:
        return None
    return {
        "deprecated_at": None if told.deprecated_at is None else int(told.deprecated_at.timestamp()),
        "retires_at": None if told.retires_at is None else int(told.retires_at.timestamp()),
        "replacement": told.replacement,
        "answered_by_replacement": told.redirected,
        "note": told.note,
    }
