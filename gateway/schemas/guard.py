"""Checks of a body's raw bytes before it is decoded, each a few passes in C."""

from core.errors import InvalidRequest, RequestTooLarge
from gateway.limits import MAX_JSON_DEPTH

_BRACKETS = b"[]{}"
_NOT_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_TO_PARENTHESES = bytes.maketrans(b"[]{}", b"()()")


def nesting_depth(document: bytes, limit: int) -> int:
    """Return how deeply arrays and objects nest in a JSON document; `limit + 1` for anything deeper than `limit`.

    Strings are removed first, since brackets inside them do not nest; then each pass removes the innermost level. What
    remains when nothing can be removed is unbalanced, which the decoder reports; its depth is the number of unclosed
    brackets.
    """
    plain = document
    if b"\\" in plain:
        plain = plain.replace(b"\\\\", b"").replace(b'\\"', b"")
    if b'"' in plain:
        plain = b"".join(plain.split(b'"')[::2])
    rest = plain.translate(_TO_PARENTHESES, _NOT_BRACKETS)
    for depth in range(limit + 1):
        if not rest:
            return depth
        reduced = rest.replace(b"()", b"")
        if len(reduced) == len(rest):
            return depth + rest.count(b"(") if rest.count(b"(") <= limit else limit + 1
        rest = reduced
    return limit + 1


def check_document(body: bytes) -> None:
    """Raise RequestTooLarge for deep nesting, and InvalidRequest for NUL characters.

    The decoder itself refuses lone surrogates, raw control characters and invalid UTF-8.
    """
    if (
        body.count(b"[") + body.count(b"{") > MAX_JSON_DEPTH
        and nesting_depth(body, MAX_JSON_DEPTH) > MAX_JSON_DEPTH
    ):
        raise RequestTooLarge(
            f"The body nests deeper than {MAX_JSON_DEPTH} levels; flatten it.", code="body_too_deep"
        )
    if b"\\u0000" in body and b"\\u0000" in body.replace(b"\\\\", b""):
        raise InvalidRequest("The body contains a NUL character (\\u0000); remove it.", code="nul_character")
