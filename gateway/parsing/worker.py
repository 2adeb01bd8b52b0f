"""A process that parses large bodies: reads one at a time from stdin and writes the result to stdout.

A frame is the length as four bytes, big-endian, then the payload. A request is one byte for the endpoint, then the
body. A reply is the msgpack of `Reply`. Before the first request a worker sends one empty frame: it has started.
"""

import os
import resource
import signal
import sys
from typing import Any, BinaryIO

import msgspec

from core.errors import InvalidRequest, RequestTooLarge, UnsupportedField
from gateway.dialects.messages.request import parse_count, parse_messages
from gateway.dialects.responses.parser import parse_continued, parse_responses
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import Parse, PreparedRequest
from gateway.schemas.completions import parse_completion
from gateway.schemas.embeddings import parse_embeddings
from gateway.schemas.tokenize import parse_detokenize, parse_tokenize

PARSERS: dict[bytes, Parse] = {
    b"c": parse_chat,
    b"t": parse_completion,
    b"e": parse_embeddings,
    b"m": parse_messages,
    b"n": parse_count,
    b"r": parse_responses,
    b"s": parse_continued,
    b"k": parse_tokenize,
    b"d": parse_detokenize,
}
"""By the first byte of a request: chat and text completions, embeddings, messages and the count of their tokens,
responses, responses with stored items in front of them, tokenize and detokenize."""
MAX_MEMORY_BYTES = 2**30
"""Address space of a worker."""
NICENESS = 5
"""Added niceness of a worker: the processes that serve open streams come first."""
_ERRORS = {kind.__name__: kind for kind in (InvalidRequest, RequestTooLarge, UnsupportedField)}


class ParseError(msgspec.Struct):
    """An error of validation."""

    kind: str
    message: str
    code: str
    param: str | None


class Reply(msgspec.Struct):
    """The result for one body: `prepared` or `error`."""

    prepared: PreparedRequest | None = None
    error: ParseError | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Reply)


def frame(*parts: bytes) -> bytes:
    """Return the parts as one frame."""
    return b"".join((sum(map(len, parts)).to_bytes(4, "big"), *parts))


def decode_reply(payload: bytes) -> PreparedRequest:
    """Return the prepared request. Raises the parser's error, or msgspec.MsgspecError for an invalid payload."""
    reply = _decoder.decode(payload)
    if reply.error is not None:
        error = reply.error
        raise _ERRORS[error.kind](error.message, code=error.code, param=error.param)
    if reply.prepared is None:
        raise msgspec.DecodeError("a reply without a result")
    fields = reply.prepared.fields
    for name, value in fields.items():
        if isinstance(value, bytes):
            fields[name] = msgspec.Raw(value)
    return reply.prepared


def answer(request: bytes) -> bytes:
    """Return the reply to one request."""
    try:
        prepared = PARSERS[request[:1]](request[1:])
    except InvalidRequest as error:
        return _encoder.encode(
            Reply(error=ParseError(type(error).__name__, error.message, error.code, error.param))
        )
    fields: dict[str, Any] = prepared.fields
    for name, value in fields.items():
        if isinstance(value, msgspec.Raw):  # encoded JSON, which reaches the other side as bytes
            fields[name] = bytes(value)
    return _encoder.encode(Reply(prepared=prepared))


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Report the start, then answer requests until `source` ends."""
    sink.write(frame())
    sink.flush()
    while len(head := source.read(4)) == 4:
        size = int.from_bytes(head, "big")
        request = source.read(size)
        if len(request) < size:
            return
        sink.write(frame(answer(request)))
        sink.flush()


def main() -> None:
    """Serve stdin and stdout with bounded memory."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers by closing stdin
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
