"""What a dialect has to provide: another API's form of errors and of the answer to one chat request.

The form of its requests is a parser beside those of chat and completions (gateway/parsing/worker.py), which returns a
`PreparedRequest` of the endpoint chat. A dialect is pure: it gets whole chat events and documents and returns its own.
"""

from typing import Any, Protocol
from uuid import UUID

from core.errors import PenstockError
from gateway.dialects.field_names import FieldNames
from gateway.ports import Headers
from gateway.schemas.common import PreparedRequest


class Translation(Protocol):
    """The answer to one request, translated as it arrives."""

    def start(self, prompt_tokens: int) -> None:
        """Take the tokens of the prompt, before the first events of a stream; 0 = not known yet."""

    def feed(self, events: bytes) -> bytes:
        """Return the dialect's events for whole chat events; may be empty."""

    def keep_alive(self) -> bytes:
        """Return what a silent stream sends to keep its connection open."""

    def end(self, events: bytes) -> bytes:
        """Return the last events for the last chat events, which have usage and cost, and end in [DONE]."""

    def fail(self, status: int, error: PenstockError) -> bytes:
        """Return the last events of a stream that `error` ends; `status`: the HTTP status that it would have had."""

    def whole(self, body: bytes) -> bytes:
        """Return the document for a chat answer in one piece."""


class Dialect(Protocol):
    """One API's form of answers. One per process; keeps no state of a request."""

    @property
    def names(self) -> FieldNames:
        """The names that its callers know for fields of chat."""

    def begin(self, request_id: UUID, prepared: PreparedRequest) -> Translation:
        """Return the empty answer to a request."""

    def error(self, request_id: UUID, status: int, error: PenstockError) -> tuple[int, dict[str, Any] | None]:
        """Return status and document of a request that is answered with an error; None = OpenAI's document.

        `status`: that of OpenAI's form.
        """

    def headers(self, request_id: UUID, headers: Headers) -> Headers:
        """Return the headers that an answer with `headers` has in addition."""
