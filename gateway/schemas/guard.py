"""Checks that run on the raw bytes of a body before it is decoded, each a handful of C-speed passes."""

from core.errors import InvalidRequest, RequestTooLarge
from gateway.limits import MAX_JSON_DEPTH

_BRACKETS = b"[]{}"
_NOT_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_TO_PARENTHESES = bytes.maketrans(b"[]{}", b"()()")


def nesting_depth(document: bytes, limit: int) -> int:
    """How deeply arrays and objects nest in a JSON document; `limit + 1` stands for anything deeper.

    Strings are cut out first (brackets inside them do not nest), then one level is folded away per pass. What does
    not fold is unbalanced: the decoder will say so, and until then counts as too deep only if it opens too often.
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
        folded = rest.replace(b"()", b"")
        if len(folded) == len(rest):
            return depth + rest.count(b"(") if rest.count(b"(") <= limit else limit + 1
        rest = folded
    return limit + 1


def check_document(body: bytes) -> None:
    """Refuse what no honest client sends: extreme nesting and NUL characters.

    Lone surrogates, raw control characters and broken UTF-8 are refused by the decoder itself.
    Raises RequestTooLarge or InvalidRequest.
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
