"""Signatures of Stripe's webhooks: HMAC-SHA256 over "timestamp.body" of the raw body.

Source: https://docs.stripe.com/webhooks#verify-manually
"""

import hashlib
import hmac
from collections.abc import Iterable

from core.errors import AuthenticationFailed

TOLERANCE_S = 300
"""Seconds by which a signature's timestamp may differ from now."""
MAX_HEADER = 4096
"""Characters of the header at most."""
_CODE = "webhook_signature"


def verify(body: bytes, header: str, secrets: Iterable[str], now_s: int) -> None:
    """Raise AuthenticationFailed unless the Stripe-Signature `header` signs `body` with one of `secrets`.

    `now_s` is the present instant in Unix seconds. Several secrets allow a rotation.
    """
    if len(header) > MAX_HEADER:
        raise AuthenticationFailed("the signature header is too long", code=_CODE)
    parts = [part.strip().partition("=") for part in header.split(",")]
    stamps = [value for name, _, value in parts if name == "t"]
    given = [value for name, _, value in parts if name == "v1"]
    if (
        len(stamps) != 1
        or not stamps[0].isascii()
        or not stamps[0].isdigit()
        or len(stamps[0]) > 12
        or not given
    ):
        raise AuthenticationFailed("the body is not signed: no valid Stripe-Signature header", code=_CODE)
    signed = stamps[0].encode() + b"." + body
    good = False
    for secret in secrets:
        expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest().encode()
        for value in given:
            good |= hmac.compare_digest(expected, value.encode())
    if not good:
        raise AuthenticationFailed("the signature does not belong to this body", code=_CODE)
    if abs(now_s - int(stamps[0])) > TOLERANCE_S:
        raise AuthenticationFailed(
            f"the signature is more than {TOLERANCE_S} s away from now: a replay, or a wrong clock",
            code=_CODE,
        )
