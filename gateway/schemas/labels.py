"""End user and tags of a request: `safety_identifier`, `user` and the entries of `metadata` named `tag_*`.

No engine gets them. They stand beside the usage row, so that customers can charge their own users.
"""

import re
from typing import Protocol

import msgspec

from billing.metering.records import Labels
from core.errors import InvalidRequest, RequestTooLarge
from gateway.limits import MAX_LABEL_CHARS, MAX_TAGS

TAG_PREFIX = "tag_"
ADAPTER_TAG = "tag_adapter"
"""The tag with the adapter of a request, whatever the request itself says of a tag of this name."""
_TAG_NAME = re.compile(r"tag_[A-Za-z0-9_.-]{1,60}")
_text_decoder = msgspec.json.Decoder(str)


class Labelled(Protocol):
    """A request that may name its end user and tags."""

    user: str | None
    safety_identifier: str | None
    metadata: dict[str, msgspec.Raw] | None


def labels_of(request: Labelled) -> Labels | None:
    """Return the labels that a request names; None when it names none.

    `safety_identifier` and `user`, its older name with OpenAI, are one value; the former wins. Raises InvalidRequest
    for text that cannot be printed or a tag that is no text, and RequestTooLarge for too many or too long ones.
    """
    if request.safety_identifier is None and request.user is None and request.metadata is None:
        return None
    named = "safety_identifier" if request.safety_identifier else "user"
    end_user = _printable(request.safety_identifier or request.user or "", named)
    tags = _tags(request.metadata or {})
    return Labels(end_user, tags) if end_user or tags else None


def _tags(metadata: dict[str, msgspec.Raw]) -> dict[str, str]:
    """The entries that are tags; other entries have no effect."""
    tags = {}
    for name, raw in metadata.items():
        if not name.startswith(TAG_PREFIX):
            continue
        if _TAG_NAME.fullmatch(name) is None:
            raise InvalidRequest(
                "The name of a tag is 'tag_' and 1 to 60 letters, digits, '_', '-' or '.'; "
                f"{name[:MAX_LABEL_CHARS]!r} is not.",
                param="metadata",
            )
        param = f"metadata.{name}"
        try:
            value = _text_decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidRequest(f"The tag '{param}' must be a text.", param=param) from None
        if len(value) > MAX_LABEL_CHARS:
            raise RequestTooLarge(
                f"The tag '{param}' has {len(value):,} characters; at most {MAX_LABEL_CHARS} are accepted.",
                param=param,
            )
        if value:
            tags[name] = _printable(value, param)
    if len(tags) > MAX_TAGS:
        raise RequestTooLarge(
            f"'metadata' has {len(tags)} tags (names that begin with 'tag_'); at most {MAX_TAGS} are accepted.",
            param="metadata",
        )
    return tags


def _printable(value: str, param: str) -> str:
    if not value.isprintable():
        raise InvalidRequest(f"'{param}' contains a character that cannot be printed.", param=param)
    return value
