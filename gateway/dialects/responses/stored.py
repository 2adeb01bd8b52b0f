"""Stored items on their way to the parser, which may be another process."""

import msgspec


class StoredContext(msgspec.Struct):
    """Stored items that a request refers to; the parser reads it in front of the body (`framed`)."""

    chain: list[msgspec.Raw] = []
    """The items of the responses that the request continues, the first ones first."""
    named: dict[str, msgspec.Raw] = {}
    """Items by their ids."""


def framed(context: StoredContext, body: bytes) -> bytes:
    """Return `body` with stored items in front of it, for the parser: a length of four bytes, the items, the body."""
    stored = msgspec.json.encode(context)
    return b"".join((len(stored).to_bytes(4, "big"), stored, body))
