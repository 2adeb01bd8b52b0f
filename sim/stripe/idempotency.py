"""Idempotency keys: https://docs.stripe.com/api/idempotent_requests."""

from collections.abc import Mapping
from hashlib import sha256
from itertools import takewhile

from sim.stripe.errors import Obj, StripeError, invalid
from sim.stripe.store import Store

KEPT_S = 86_400
"""Seconds of virtual time after which a key may be reused."""
_MAX_KEY = 255


def fingerprint(method: str, path: str, body: bytes) -> str:
    """Return the hash of the operation and its parameters, to which a key is bound."""
    return sha256(b"\0".join((method.encode(), path.encode(), body))).hexdigest()


class Keys:
    """Stores responses by key. A request refused by validation stores no response, so the caller can correct it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._running: dict[str, str] = {}

    def begin(self, key: str, mark: str, now: int) -> Obj | None:
        """Return the stored response, {"status", "body"}; None when this is the key's first request.

        Raises StripeError: 400 for another request under this key, 409 while the first is still running.
        """
        if len(key) > _MAX_KEY:
            raise invalid(
                f"Idempotency keys have at most {_MAX_KEY} characters", code="idempotency_key_too_long"
            )
        self._prune(now)
        known = self._running.get(key)
        row = self._store.get("idempotency", key)
        if (known or (row or {}).get("mark", mark)) != mark:
            raise StripeError(
                f"Keys for idempotent requests can only be used with the same parameters they were first used with. "
                f"Try using a key other than '{key}' if you meant to execute a different request.",
                type="idempotency_error", kept=False,
            )  # fmt: skip
        if known:
            raise StripeError(
                "There is currently another in-progress request using this Idempotent Key (that probably means you"
                " submitted twice, and the other request is still going through). Please try again later.",
                status=409, type="idempotency_error", code="idempotency_key_in_use", kept=False,
            )  # fmt: skip
        if row is None:
            self._running[key] = mark
        return row

    def finish(self, key: str, mark: str, now: int, status: int, body: Obj) -> None:
        """Store the response of a request for which `begin` returned None."""
        self._running.pop(key, None)
        self._store.put("idempotency", key, {"mark": mark, "at": now, "status": status, "body": body})

    def give_up(self, key: str) -> None:
        """Forget a request for which `begin` returned None, without a response."""
        self._running.pop(key, None)

    def _prune(self, now: int) -> None:
        old = takewhile(lambda row: row[1]["at"] <= now - KEPT_S, self.rows().items())
        for key in [key for key, _ in old]:
            self._store.drop("idempotency", key)

    def rows(self) -> Mapping[str, Obj]:
        """All stored responses by key, oldest first."""
        return self._store.kind("idempotency")
