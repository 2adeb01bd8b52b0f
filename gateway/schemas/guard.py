"""A check of JSON text in a few passes in C.

A body as a whole needs no check of its nesting. The decoder skips ignored fields and refuses what nests deeper than the
interpreter's recursion limit, and the fields that reach an engine have fixed shapes except JSON schemas and the
arguments of tool calls, which `nests_deeper` checks.
"""

from itertools import accumulate

_BRACKETS = b"[]{}"
_NOT_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_TO_STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")
"""Brackets to the change of depth that they make, as signed bytes."""


def nests_deeper(document: bytes, limit: int) -> bool:
    """Return whether arrays and objects nest deeper than `limit` levels in a JSON document.

    Strings are removed first, since brackets inside them do not nest. In a document that is not valid JSON, the result
    holds for the part before the first error.
    """
    if document.count(b"[") + document.count(b"{") <= limit:
        return False
    plain = document
    if b"\\" in plain:
        plain = plain.replace(b"\\\\", b"").replace(b'\\"', b"")
    if b'"' in plain:
        plain = b"".join(plain.split(b'"')[::2])
    steps = memoryview(plain.translate(_TO_STEPS, _NOT_BRACKETS)).cast("b")
    return max(accumulate(steps), default=0) > limit
