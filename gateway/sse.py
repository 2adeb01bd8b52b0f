"""Server-sent events between engine and client, as slices of bytes.

Events are relayed, not rebuilt: the engine was given our model name and request id, so its bytes are right for the
client except for the running usage, which is cut out of each event. The trick that makes this cheap and safe: inside
a JSON string every quote is escaped, so the bytes `"usage":` can only be a key.

`StreamCodec.feed` takes whatever a read returned and gives what the client should get. While a stream is in its
steady state a whole read is handled by a few C-speed searches; its first and last events, several choices, and
anything unusual take the slow path, event by event.
"""

import re

import msgspec

from core.errors import EngineFailed
from gateway.limits import MAX_EVENT_BYTES
from gateway.usage import EngineUsage, UsageTracker

DONE = b"data: [DONE]\n\n"
_USAGE_MEMBER = re.compile(rb',\s*"usage":\s*(?:null|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})\s*\}(?=\n\n)')
_TEXT = re.compile(rb'("(?:delta":\s*\{\s*"[a-z_]+|text)":\s*")(?:[^"\\]|\\.)*"')
_USAGE_START = re.compile(rb',\s*"usage":\s*\{')
_UNFINISHED = re.compile(rb'"finish_reason":\s*null')
_usage_decoder = msgspec.json.Decoder(EngineUsage)


class Delta(msgspec.Struct, gc=False):
    """The parts of a delta that tell whether it carries content."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def has_content(self) -> bool:
        """Whether the client gets anything beyond a role from it."""
        if self.content or self.reasoning or self.reasoning_content or self.refusal:
            return True
        return self.tool_calls is not msgspec.UNSET and bytes(self.tool_calls) not in (b"null", b"[]")


class ChunkChoice(msgspec.Struct, gc=False):
    """One choice of a chunk, of either dialect."""

    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    def has_content(self) -> bool:
        """Whether it carries text, reasoning or a tool call."""
        return bool(self.text) or (self.delta is not None and self.delta.has_content())


class Chunk(msgspec.Struct, gc=False):
    """One event of an engine's stream."""

    id: str = ""
    object: str = ""
    created: int = 0
    model: str = ""
    choices: list[ChunkChoice] = []
    usage: EngineUsage | None = None
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_chunk_decoder = msgspec.json.Decoder(Chunk)


class EventSplitter:
    """Cuts a byte stream at event borders, wherever the reads fell."""

    __slots__ = ("_partial",)

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> bytes:
        """All whole events so far, each ending in a blank line; the rest waits. Raises EngineFailed past the cap."""
        if b"\r" in data:
            data = data.replace(b"\r", b"")
        if self._partial:
            data = self._partial + data
            self._partial = b""
        if data[-2:] == b"\n\n":
            return data
        end = data.rfind(b"\n\n") + 2
        if end == 1:
            end = 0
        self._partial = data[end:]
        if len(self._partial) > MAX_EVENT_BYTES:
            raise EngineFailed("The engine sent an event beyond every bound.")
        return data[:end]

    def rest(self) -> bytes:
        """What came after the last whole event; an unfinished event is never relayed."""
        return self._partial


def strip_usage(payload: bytes) -> bytes:
    """A chunk without its usage member: a slice where it comes last, else decoded and built again."""
    if b'"usage"' not in payload:
        return payload
    cut = _USAGE_MEMBER.sub(b"}", payload + b"\n\n")[:-2]
    if b'"usage"' not in cut:
        return cut
    document = msgspec.json.decode(payload)
    document.pop("usage", None)
    return msgspec.json.encode(document)


class ChunkTemplate:
    """What successive content events of one stream have in common: all but the text and the counts.

    Inside a JSON string every quote is escaped, so an event that opens and closes like a known one differs from it
    in the value of its text only (or in members beside it, which do not matter here): it is no error, no last chunk,
    and its choice has not finished.
    """

    __slots__ = ("closing", "opening", "usage_offset", "usage_prefix")

    def __init__(self, opening: bytes, closing: bytes, usage_prefix: bytes) -> None:
        self.opening = opening
        self.closing = closing
        self.usage_prefix = usage_prefix
        """From the comma before the usage member to its brace."""
        self.usage_offset = len(usage_prefix) - 1

    @classmethod
    def of(cls, payload: bytes) -> "ChunkTemplate | None":
        """The shape of an event with text and running usage; None when it is not that simple."""
        text = _TEXT.search(payload)
        usage = [*_USAGE_START.finditer(payload)]
        if text is None or not usage or usage[-1].start() < text.end():
            return None
        closing = payload[text.end() - 1 : usage[-1].start()]
        if _UNFINISHED.search(closing) is None:
            return None
        return cls(b"data: " + payload[: text.end(1)], closing, usage[-1].group())


class StreamCodec:
    """One attempt's stream: counts its tokens, notes how it ends, and yields what the client should see."""

    __slots__ = (
        "_finished", "_splitter", "_template", "_withheld", "choices", "content_started", "done", "error",
        "finish_reasons", "first_chunk", "limit", "limit_reached", "tracker",
    )  # fmt: skip

    def __init__(self, choices: int, limit: int) -> None:
        self._splitter = EventSplitter()
        self._finished: set[int] = set()
        self._withheld = b""
        self._template: ChunkTemplate | None = None
        self.choices = choices
        self.limit = limit
        """Output tokens that are paid for. The event that would pass it is held back and the stream is over."""
        self.tracker = UsageTracker(choices)
        self.first_chunk: Chunk | None = None
        """The first chunk: its id, object, time and model go onto events of our own."""
        self.content_started = False
        """Content has been seen."""
        self.done = False
        """The engine said [DONE]."""
        self.limit_reached = False
        self.error: bytes | None = None
        """The engine's error object, when it sent one."""
        self.finish_reasons: set[str] = set()

    @property
    def complete(self) -> bool:
        """Every choice has come to an end by the engine's own word."""
        return len(self._finished) >= self.choices

    @property
    def unfinished(self) -> list[int]:
        """The choices whose end the engine has not announced."""
        return [index for index in range(self.choices) if index not in self._finished]

    def feed(self, data: bytes) -> bytes:
        """Whole events for the client out of what has just been read; may be empty."""
        block = self._splitter.feed(data)
        if self.limit_reached:
            self._withheld += block
            return b""
        if not block or self.error is not None:
            return b""
        if self._template is not None and block.find(b"\n") == len(block) - 2:
            plain = self._match_template(block[:-2], self._template)
            if plain is not None:
                return plain
        return self._decode_events(block)

    def raise_limit(self, limit: int) -> bytes:
        """More has been paid for: go on with what was held back."""
        held, self._withheld = self._withheld, b""
        self.limit = limit
        self.limit_reached = False
        return self._decode_events(held)

    def _match_template(self, event: bytes, shape: ChunkTemplate) -> bytes | None:
        """The fast path: an event of the known shape, counted and without its usage. None when it is no such event."""
        place = event.rfind(shape.usage_prefix)
        if place < 0 or not event.startswith(shape.opening) or not event.endswith(shape.closing, 0, place):
            return None
        try:
            usage = _usage_decoder.decode(event[place + shape.usage_offset : -1])
        except msgspec.MsgspecError:
            return None
        output = usage.completion_tokens
        if not output or output > self.limit:
            return None
        self.tracker.update_choice(usage, 0)
        return event[:place] + b"}\n\n"

    def _decode_events(self, block: bytes) -> bytes:
        """The slow path: every event that is not of the known shape is decoded."""
        out: list[bytes] = []
        events = block.split(b"\n\n")
        for position, event in enumerate(events):
            if self._template is not None and b"\n" not in event:
                plain = self._match_template(event, self._template)
                if plain is not None:
                    out.append(plain)
                    continue
            payload = _payload(event)
            if not payload:
                continue
            if payload == b"[DONE]":
                self.done = True
                break
            try:
                chunk = _chunk_decoder.decode(payload)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise EngineFailed(f"The engine sent an event that is no chunk: {error}") from None
            if chunk.error is not msgspec.UNSET and bytes(chunk.error) != b"null":
                self.error = bytes(chunk.error)
                break
            if not self._count(chunk):
                self._withheld = b"\n\n".join(events[position:])
                break
            if chunk.choices:
                out.append(b"data: " + strip_usage(payload) + b"\n\n")
                if self.choices == 1 and self.content_started:
                    self._template = ChunkTemplate.of(payload)
        return b"".join(out)

    def _count(self, chunk: Chunk) -> bool:
        """Count one chunk; False when it is beyond the limit and must not be relayed."""
        if self.first_chunk is None:
            self.first_chunk = chunk
        if not chunk.choices:
            if chunk.usage is not None:
                self.tracker.set_totals(chunk.usage)
            return True
        content = any(choice.has_content() for choice in chunk.choices)
        if self._exceeds_limit(chunk, content):
            self.limit_reached = True
            return False
        if chunk.usage is not None:
            self.tracker.update_choice(chunk.usage, chunk.choices[0].index)
        if content:
            self.content_started = True
            self.tracker.content_events += 1
        for choice in chunk.choices:
            if choice.finish_reason is not None:
                self._finished.add(choice.index)
                self.finish_reasons.add(choice.finish_reason)
        return True

    def _exceeds_limit(self, chunk: Chunk, content: bool) -> bool:
        """Whether relaying it would deliver more output tokens than are paid for."""
        if chunk.usage is None:
            return content and not self.tracker.reported and self.tracker.content_events + 1 > self.limit
        return self.tracker.output_after(chunk.usage, chunk.choices[0].index) > self.limit


def _payload(event: bytes) -> bytes:
    """The data of one event; comments and other fields are dropped."""
    if event[:6] == b"data: " and b"\n" not in event:
        return event[6:]
    lines = [line[5:].lstrip(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines).strip()
