"""CORS for browsers: off, except for the origins that a key allows (tenants/client_settings.py).

A preflight shows no key; it is answered for every origin that some key allows, from memory. The request itself gets
the headers when its own key allows its origin, and a key with other origins refuses it.
"""

import re
from collections.abc import Collection

from starlette.types import Scope, Send

from core.errors import PermissionDenied
from gateway.ports import Headers
from tenants.principal import Principal

PREFIX = "/v1/"
"""Routes for browsers."""
MAX_AGE_S = 600
"""Seconds that a browser remembers a preflight's answer."""
_NAMES = re.compile(rb"[A-Za-z0-9_-]+(?: *, *[A-Za-z0-9_-]+)*")
_MAX_NAMES_BYTES = 2048
_VARY = (b"vary", b"Origin")
_METHODS = b"GET, POST, DELETE"


def origin_of(headers: Collection[tuple[bytes, bytes]]) -> str:
    """The header Origin; empty without one, as from most programs."""
    return next((value.decode("latin-1") for name, value in headers if name == b"origin"), "")


def allow(origin: str) -> Headers:
    """Headers with which a page of `origin` may read the answer and all of its headers."""
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"*"),
        _VARY,
    ]


def check_origin(principal: Principal, origin: str) -> bool:
    """Whether a page of `origin` may read the answer; False for a key without origins.

    Raises PermissionDenied when the key allows other origins only.
    """
    if not principal.cors_origins:
        return False
    if origin not in principal.cors_origins:
        raise PermissionDenied(
            f"This key may not be used by pages of {origin[:100]!r}; its settings name the origins that may.",
            code="origin_not_allowed",
        )
    return True


def is_preflight(scope: Scope, origins: Collection[str]) -> bool:
    """Whether a request is the preflight of one that some key allows; `origins` are those of all keys."""
    return (
        scope["method"] == "OPTIONS"
        and scope["path"].startswith(PREFIX)
        and origin_of(scope["headers"]) in origins
        and any(name == b"access-control-request-method" for name, _ in scope["headers"])
    )


async def answer_preflight(scope: Scope, send: Send) -> None:
    """Allow the request, with the headers that it names: SDKs send several of their own."""
    headers = [
        *allow(origin_of(scope["headers"])),
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", b"%d" % MAX_AGE_S),
        (b"content-length", b"0"),
    ]
    for name, value in scope["headers"]:
        if (
            name == b"access-control-request-headers"
            and len(value) <= _MAX_NAMES_BYTES
            and _NAMES.fullmatch(value)
        ):
            headers.append((b"access-control-allow-headers", value))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
