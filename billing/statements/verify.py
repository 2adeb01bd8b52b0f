"""Verifies a statement or receipt offline, with the list of public keys as the only trusted input.

A JSON file is the canonical JSON of {body, signature} and a newline. A PDF carries the same signature in a comment
after its end, which covers every byte before that comment. A change of any byte is detected.
"""

import json
import re
from typing import Any

import msgspec

from billing.statements import canonical
from billing.statements.signing import ALGORITHM, check_signature, sha256
from core.errors import InvalidRequest

SIGNATURE_MARK = b"\n%penstock-signature "
MAX_FILE = 64 * 1024 * 1024
"""Bytes of a file that is verified."""
_FIELDS = {"alg", "body_sha256", "key_id", "pdf_sha256", "type", "value"}
_HEX = re.compile(r"[0-9a-f]+")


class Verified(msgspec.Struct, frozen=True):
    """A file with a valid signature."""

    file: str
    """json | pdf"""
    type: str
    key_id: str
    body_sha256: str
    pdf_sha256: str
    body: dict[str, Any] | None
    """The signed body of a JSON file; None for a PDF."""


def read_keys(data: bytes) -> dict[str, bytes]:
    """Public keys by id, from the published file of keys. Raises InvalidRequest for an invalid file."""
    try:
        keys = {str(key["key_id"]): bytes.fromhex(key["public_key"]) for key in json.loads(data)["keys"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidRequest(
            "the keys file cannot be read; get it from /.well-known/penstock-keys.json"
        ) from None
    if not all(len(key) == 32 for key in keys.values()):
        raise InvalidRequest("the keys file holds a key that is not 32 bytes long")
    return keys


def append_signature(pdf: bytes, signature: dict[str, str]) -> bytes:
    """The PDF with its signature in a comment after its end, which readers ignore."""
    return pdf + SIGNATURE_MARK + canonical.canonical(signature) + b"\n"


def verify(data: bytes, keys: dict[str, bytes]) -> Verified:
    """Verify a JSON document or a PDF. Raises InvalidRequest that states the first failed check."""
    if len(data) > MAX_FILE:
        raise InvalidRequest(f"the file is larger than {MAX_FILE:,} bytes; it is none of ours")
    if data.startswith(b"%PDF"):
        return _verify_pdf(data, keys)
    return _verify_json(data, keys)


def verify_pair(one: bytes, other: bytes, keys: dict[str, bytes]) -> Verified:
    """Verify a JSON statement and its PDF, in any order; returns the JSON's result. Raises InvalidRequest as `verify`,
    and when both do not belong together."""
    first, second = verify(one, keys), verify(other, keys)
    if {first.file, second.file} != {"json", "pdf"}:
        raise InvalidRequest("give one JSON file and one PDF")
    if (first.body_sha256, first.pdf_sha256) != (second.body_sha256, second.pdf_sha256):
        raise InvalidRequest("both signatures hold, and the PDF belongs to another statement than the JSON")
    return first if first.file == "json" else second


def _verify_json(data: bytes, keys: dict[str, bytes]) -> Verified:
    if not data.endswith(b"\n"):
        raise InvalidRequest("NOT VALID: the file was changed or cut off (its last line end is missing)")
    try:
        found = canonical.parse(data[:-1])
    except ValueError as error:
        raise InvalidRequest(f"NOT VALID: the file was changed ({error})") from None
    if (
        not isinstance(found, dict)
        or set(found) != {"body", "signature"}
        or not isinstance(found["body"], dict)
    ):
        raise InvalidRequest("NOT VALID: this is no statement or receipt of ours")
    signature = _valid_signature(found["signature"], keys)
    if signature["body_sha256"] != sha256(canonical.canonical(found["body"])):
        raise InvalidRequest("NOT VALID: the content was changed after it was signed")
    if found["body"].get("type") != signature["type"]:
        raise InvalidRequest("NOT VALID: the signature is one of another kind of document")
    return _verified("json", signature, found["body"])


def _verify_pdf(data: bytes, keys: dict[str, bytes]) -> Verified:
    pdf, mark, trailer = data.rpartition(SIGNATURE_MARK)
    if not mark or not trailer.endswith(b"\n"):
        raise InvalidRequest("NOT VALID: the PDF carries no signature at its end (cut off, or printed anew?)")
    try:
        found = canonical.parse(trailer[:-1])
    except ValueError:
        raise InvalidRequest("NOT VALID: the signature at the end of the PDF was changed") from None
    signature = _valid_signature(found, keys)
    if signature["pdf_sha256"] != sha256(pdf):
        raise InvalidRequest("NOT VALID: the PDF was changed after it was signed")
    return _verified("pdf", signature, None)


def _valid_signature(signature: Any, keys: dict[str, bytes]) -> dict[str, str]:
    if (
        not isinstance(signature, dict)
        or set(signature) != _FIELDS
        or not all(isinstance(value, str) for value in signature.values())
        or _HEX.fullmatch(signature["value"]) is None
        or signature["alg"] != ALGORITHM
    ):
        raise InvalidRequest("NOT VALID: the signature is incomplete or of an unknown kind")
    key = keys.get(signature["key_id"])
    if key is None:
        raise InvalidRequest(
            f"the key {signature['key_id'][:40]!r} is not among the {len(keys)} known ones: get the newest "
            "/.well-known/penstock-keys.json from the platform itself; if it is not there either, the file is forged"
        )
    if not check_signature(signature, key):
        raise InvalidRequest("NOT VALID: the signature does not belong to this content, or was changed")
    return signature


def _verified(file: str, signature: dict[str, str], body: dict[str, Any] | None) -> Verified:
    return Verified(
        file=file,
        type=signature["type"],
        key_id=signature["key_id"],
        body_sha256=signature["body_sha256"],
        pdf_sha256=signature["pdf_sha256"],
        body=body,
    )
