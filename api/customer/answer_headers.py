"""Headers of every answer of the customer API that tell a client who answered, and which of its requests."""

from core.errors import InvalidRequest

OPENAI_VERSION = (b"openai-version", b"2020-10-01")
"""The version of OpenAI's REST API that is answered: there has been one."""
CLIENT_REQUEST_ID = b"x-client-request-id"
MAX_CLIENT_REQUEST_ID = 512
"""Characters of a client's own id of a request, as OpenAI has it."""


def processing_ms(elapsed_s: float) -> tuple[bytes, bytes]:
    """The header that says how long it took from the request's head to the answer's."""
    return (b"openai-processing-ms", b"%d" % (elapsed_s * 1000))


def check_client_request_id(value: bytes) -> tuple[bytes, bytes]:
    """The header that returns a client's own id.

    Raises InvalidRequest unless the id is 1 to 512 visible ASCII characters.
    """
    if 0 < len(value) <= MAX_CLIENT_REQUEST_ID and all(0x20 < byte < 0x7F for byte in value):
        return (CLIENT_REQUEST_ID, value)
    raise InvalidRequest(
        f"x-client-request-id has to be 1 to {MAX_CLIENT_REQUEST_ID} visible ASCII characters; got {len(value)} bytes.",
        param="x-client-request-id",
        code="invalid_client_request_id",
    )
