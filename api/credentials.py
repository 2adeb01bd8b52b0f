"""The API key of a request: a bearer token as OpenAI's SDKs send it, or the header of Anthropic's."""

from collections.abc import Iterable

from core.errors import AuthenticationFailed

API_KEY = b"x-api-key"
"""Anthropic's header for the key."""
_AUTHORIZATION = b"authorization"


def key_of(authorization: bytes, api_key: bytes) -> str:
    """Return the key in the values of both headers; the bearer token, where both have one.

    Raises AuthenticationFailed when none has.
    """
    scheme, _, token = authorization.decode("latin-1").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    if key := bearer or api_key.decode("latin-1").strip():
        return key
    raise AuthenticationFailed(
        "No API key: send it as 'Authorization: Bearer pen_live_...', or as 'x-api-key: pen_live_...'.",
        code="missing_api_key",
    )


def sent_key(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the key in the headers of a request, whatever its form. Raises AuthenticationFailed without one."""
    found = {name: value for name, value in headers if name in (_AUTHORIZATION, API_KEY)}
    return key_of(found.get(_AUTHORIZATION, b""), found.get(API_KEY, b""))
