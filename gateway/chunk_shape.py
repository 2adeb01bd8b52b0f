"""The form of an engine's content events, by which the steady state of a stream is recognised without decoding.

Inside a JSON string every quote is escaped. Therefore an event with the same bytes before and after its text differs
from another one only in id, time, text and counts, or in members beside the text that do not matter.
"""

import re
from functools import lru_cache

import msgspec

_HEAD = re.compile(rb'(\{\s*"id":\s*")[^"]*(",\s*"object":\s*"[^"]*",\s*"created":\s*)\d+')
"""The members before the model's name, as vLLM and SGLang write them."""
_TEXT = re.compile(rb'("(?:delta":\s*\{\s*"([a-z_]+)|text)":\s*")(?:[^"\\]|\\.)*"')
_RUNNING_USAGE = re.compile(
    rb'(,\s*"usage":\s*\{\s*"prompt_tokens":\s*(\d+),\s*"total_tokens":\s*)\d+'
    rb'(,\s*"completion_tokens":\s*)\d+'
    rb'((?:,\s*"completion_tokens_details":\s*(?:null|\{\s*"reasoning_tokens":\s*\d+\s*\}))?\s*\}\s*\})$'
)
"""Running usage at the end of an event, as vLLM writes it (vllm/entrypoints/openai/engine/protocol.py, UsageInfo)."""
_REASONING = (b"reasoning", b"reasoning_content")
_UNFINISHED = re.compile(rb'"finish_reason":\s*null')
MAX_SHAPE_BYTES = 1024
"""Bytes of an event beside its text and usage, above which no other event is expected to be like it."""


class ChunkShape(msgspec.Struct, frozen=True, gc=False):
    """What the content events of all streams of an engine share: all but id, time of creation, text and counts.

    Streams share the object, so that it stays in the processor's caches while those of each stream do not.
    """

    begin: bytes
    """Before the id."""
    kind: bytes
    """Between the id and the time of creation."""
    kind_at: int
    opening: bytes
    """From there to the text."""
    opening_at: int
    closing: bytes
    """From the end of the text to the usage member."""
    between: bytes
    """Between the count of all tokens and that of output tokens."""
    ending: bytes
    """From the end of the last count to the end of the event."""
    ending_length: int


_shared = lru_cache(maxsize=1024)(ChunkShape)


def shape_of(payload: bytes) -> tuple[ChunkShape | None, bytes]:
    """Return the shape of an event with text and running usage, and None for one of another form or with reasoning.

    Of reasoning, customers get other bytes than the engine sends. Its count does not change in the events after it.

    Beside it the bytes that the events of this stream share: from the comma before the usage member to the count of all
    tokens, that of the prompt included.
    """
    head, text = _HEAD.match(payload), _TEXT.search(payload)
    usage = _RUNNING_USAGE.search(payload)
    if head is None or text is None or usage is None:
        return None, b""
    if text.start() < head.end() or usage.start() < text.end():
        return None, b""
    if text.group(2) in _REASONING:
        return None, b""
    closing = payload[text.end() - 1 : usage.start()]
    if len(closing) + text.start() > MAX_SHAPE_BYTES:
        return None, b""  # log-probabilities differ from event to event
    if _UNFINISHED.search(closing) is None:
        return None, b""
    prefix, ending = len(b"data: "), usage.group(4) + b"\n\n"
    shape = _shared(
        begin=b"data: " + head.group(1),
        kind=head.group(2),
        kind_at=prefix + head.start(2),
        opening=payload[head.end() : text.end(1)],
        opening_at=prefix + head.end(),
        closing=closing,
        between=usage.group(3),
        ending=ending,
        ending_length=len(ending),
    )
    return shape, usage.group(1)
