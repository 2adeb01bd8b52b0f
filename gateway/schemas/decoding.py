"""Decoding of bodies, with errors that name the field and the remedy."""

from typing import Generic, TypeVar

import msgspec

from core.errors import InvalidRequest, RequestTooLarge, UnsupportedField
from gateway.schemas.complaints import Complaint, complaint_of, invalid_json
from gateway.schemas.fields import KnownFields, check_fields

T = TypeVar("T", bound=msgspec.Struct)

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Finds the fields of a body in one pass that decodes none of them."""
TEXT_ONLY = "only parts of type 'text' are accepted; this model reads no images, audio or files"
"""What OpenAI's routes accept as content."""


class RequestDecoder(Generic[T]):
    """Decodes bodies of one request type."""

    def __init__(self, request_type: type[T], known: KnownFields, content: str = TEXT_ONLY) -> None:
        """`known`: the fields beside the accepted ones. `content`: which content is accepted, for the error."""
        self._decoder = msgspec.json.Decoder(request_type)
        self._known = known
        self._content = content
        self._accepted = frozenset(request_type.__struct_fields__)

    def decode(self, body: bytes) -> tuple[T, tuple[str, ...]]:
        """Return the typed request and the names of its unknown fields, which are ignored.

        Raises InvalidRequest, RequestTooLarge or UnsupportedField.
        """
        try:
            unknown = check_fields(self._known, self._accepted, _fields_decoder.decode(body))
            return self._decoder.decode(body), unknown
        except msgspec.ValidationError as error:
            raise invalid(complaint_of(error), self._content) from None
        except RecursionError:
            raise RequestTooLarge("The body nests too deep; flatten it.", code="body_too_deep") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(invalid_json(error), code="invalid_json") from None


def invalid(complaint: Complaint, content: str = TEXT_ONLY) -> InvalidRequest:
    """Return the error for a complaint. `content`: which content is accepted."""
    param = complaint.param
    if param and ".content" in param and param.endswith("type"):
        return UnsupportedField(f"{complaint.text[:-1]}: {content}.", param=param, code="unsupported_content")
    kind = RequestTooLarge if complaint.too_large else InvalidRequest
    return kind(complaint.text, param=param)
