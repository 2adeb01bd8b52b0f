"""Server-sent events from engine to client, handled as slices of bytes.

Events are relayed, not rebuilt. The engine was given our model name and request id, so that its bytes suit the client
except for the running usage and for what engines add of their own, which is removed (in the steady state only null
members of theirs remain), and for reasoning, which customers get under both of its names. Inside a JSON string every
quote is escaped; therefore the bytes `"usage":` can only be a key.

`StreamCodec.feed` takes the bytes of a read and returns the bytes for the client; it decodes each event. In the steady
state of a stream `StreamCodec.relay_one` does the same with a few searches in C. First and last events, several
choices, several events in a read and unusual events are left to `feed`.
"""

import msgspec

from core.errors import EngineFailed
from gateway.chunk_shape import ChunkShape, shape_of
from gateway.extras import carries_extras, of_batch, strip_extras
from gateway.limits import MAX_EVENT_BYTES, AnswerTooLarge
from gateway.prompt_batches import PromptBatch
from gateway.schemas.common import Extras
from gateway.tool_calls import CallStream
from gateway.usage import EngineUsage, UsageTracker

DONE = b"data: [DONE]\n\n"
BROKEN_OFF = frozenset(("abort", "error"))
"""Finish reasons of choices that the engine gave up, as vLLM and SGLang do when they are stopped."""
_NO_EXTRAS = Extras()


class Delta(msgspec.Struct, gc=False):
    """The members of a delta that can carry content."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def has_content(self) -> bool:
        """Whether it carries text, reasoning, a refusal or a tool call."""
        if self.content or self.reasoning or self.reasoning_content or self.refusal:
            return True
        return self.tool_calls is not msgspec.UNSET and bytes(self.tool_calls) not in (b"null", b"[]")


class ChunkChoice(msgspec.Struct, gc=False):
    """One choice of a chunk, of a chat or a text completion."""

    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    logprobs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    finish_reason: str | None = None
    stop_reason: int | str | msgspec.UnsetType | None = msgspec.UNSET

    def has_content(self) -> bool:
        """Whether it carries content."""
        return bool(self.text) or (self.delta is not None and self.delta.has_content())


class Chunk(msgspec.Struct, gc=False):
    """One event of an engine's stream."""

    id: str = ""
    object: str = ""
    created: int = 0
    model: str = ""
    choices: list[ChunkChoice] = []
    usage: EngineUsage | None = None
    system_fingerprint: str | None = None
    prompt_token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class ChunkHead(msgspec.Struct, gc=False):
    """The members that all chunks of a stream share. A whole chunk would keep the bytes of its event in memory."""

    id: str
    object: str
    created: int


_chunk_decoder = msgspec.json.Decoder(Chunk)


class EventSplitter:
    """Splits a byte stream at the ends of events, which may fall anywhere in a read."""

    __slots__ = ("partial",)

    def __init__(self) -> None:
        self.partial = b""
        """The beginning of an event whose end has not arrived."""

    def feed(self, data: bytes) -> bytes:
        """Return the whole events so far, each ending in a blank line, and keep the rest.

        Raises AnswerTooLarge when the rest exceeds MAX_EVENT_BYTES.
        """
        if b"\r" in data:
            data = data.replace(b"\r", b"")
        if self.partial:
            data = self.partial + data
            self.partial = b""
        if data[-2:] == b"\n\n":
            return data
        end = data.rfind(b"\n\n") + 2
        if end == 1:
            end = 0
        self.partial = data[end:]
        if len(self.partial) > MAX_EVENT_BYTES:
            raise AnswerTooLarge("The engine sent an event that is too large.")
        return data[:end]


class StreamCodec:
    """The stream of one attempt: counts its tokens, notes how it ends, and returns the bytes for the client."""

    __slots__ = (
        "_before_batch", "_calls", "_counts_ids", "_extras", "_output", "_relayed", "_shape", "_splitter", "_steady",
        "_tracker", "_usage", "_withheld", "batch", "choices", "content_started", "cut", "done", "error", "fingerprint",
        "finish_reasons", "first_chunk", "limit", "limit_reached", "read_at", "relayed_at", "withheld_output",
    )  # fmt: skip

    def __init__(
        self,
        choices: int,
        limit: int,
        *,
        relayed: bool = True,
        extras: Extras = _NO_EXTRAS,
        counts_ids: bool = False,
    ) -> None:
        """`relayed`: the client gets the events; otherwise they are merged, and keep all members.

        `extras`: those that the request asks for. `counts_ids`: events have the ids of their tokens, which are counted
        where an event has no usage.
        """
        self._counts_ids = counts_ids
        self._splitter = EventSplitter()
        self._extras = extras
        self._calls = CallStream(extras.calls) if extras.calls.changed else None
        self._relayed = relayed
        self._withheld = b""
        self._shape: ChunkShape | None = None
        """Of the last event with text that was decoded."""
        self._usage = b""
        """The bytes of that event from the comma before the usage member to the count of all tokens."""
        self._steady: ChunkShape | None = None
        """The shape while the next read can be one whole event that is relayed."""
        self.read_at = 0.0
        """When the engine last sent data, in monotonic seconds; 0 before."""
        self.relayed_at = 0.0
        """When such data was last written on in the callback that brought it, in monotonic seconds."""
        self.choices = choices
        self.batch = PromptBatch(0, 0, choices, 0, True)
        """The choices whose events arrive now: all of them, but for many prompts."""
        self._before_batch = 0
        """Events with content before those of the current batch."""
        self.limit = limit
        """Output tokens that are paid for, over all choices. The event that would exceed it is withheld."""
        self._tracker = UsageTracker(choices)
        self._output = 0
        """Output tokens of the last event of the steady state, which `tracker` takes when it is read."""
        self.first_chunk: ChunkHead | None = None
        """Of the first chunk, what the gateway's own events repeat."""
        self.fingerprint = ""
        """The engine's system_fingerprint, which engines send in any of their chunks."""
        self.content_started = False
        """Whether something that the customer asked for has arrived: text, a tool call or an extra."""
        self.done = False
        """Whether the engine has sent [DONE]."""
        self.limit_reached = False
        """Whether an event was withheld because it exceeds `limit`."""
        self.cut = False
        """Whether the answer ends here because it is above a bound of the gateway's memory."""
        self.withheld_output = 0
        """Output tokens, over all choices, that relaying the first withheld event would lead to."""
        self.error: bytes | None = None
        """The error object that the engine sent, or ours when it gave up the answer; None if there is no error."""
        self.finish_reasons: dict[int, str] = {}
        """By the index of the choice; those that the engine has not finished are missing."""

    @property
    def tracker(self) -> UsageTracker:
        """The running counts."""
        self._tracker.advance(self._output)
        return self._tracker

    @tracker.setter
    def tracker(self, tracker: UsageTracker) -> None:
        self._tracker, self._output = tracker, 0

    def begin_batch(self, batch: PromptBatch) -> None:
        """Take the events of another batch of prompts from now on, as a part of the same stream."""
        if batch.first:
            self.tracker.begin_batch()
        self.batch, self._before_batch = batch, self.tracker.content_events
        self._splitter, self.done = EventSplitter(), False

    @property
    def complete(self) -> bool:
        """Whether the engine has sent a finish reason for every choice of this batch and of those before."""
        return len(self.finish_reasons) >= self.batch.first + self.batch.choices

    @property
    def batch_started(self) -> bool:
        """Whether something that the customer asked for has arrived of this batch."""
        return self.content_started and self.tracker.content_events > self._before_batch

    @property
    def truncated(self) -> bool:
        """Whether the gateway ends the answer before the engine does."""
        return self.limit_reached or self.cut

    @property
    def unfinished(self) -> list[int]:
        """The indices of choices for which the engine has not sent a finish reason."""
        return [index for index in range(self.choices) if index not in self.finish_reasons]

    def feed(self, data: bytes) -> bytes:
        """Return the whole events for the client from the bytes of one read; may be empty.

        Raises EngineFailed when the engine sends something that is not a chunk.
        """
        block = self._splitter.feed(data)
        if self.limit_reached:
            self._withheld += block
            return b""
        if not block or self.error is not None:
            self._steady = None
            return b""
        return self._relay_events(block)

    def relay_one(self, data: bytes) -> bytes | None:
        """The fast path: count the event of a read and return it without usage. None when the read is anything but one
        event of the steady state; nothing has happened then, and `feed` takes it.
        """
        shape = self._steady
        if shape is None or data.find(b"\n") != len(data) - 2:
            return None
        return self._match(data, shape)

    def raise_limit(self, limit: int) -> bytes:
        """Raise the limit and return the withheld events that it now covers. Raises EngineFailed, as `feed` does."""
        withheld, self._withheld = self._withheld, b""
        self.limit = limit
        self.limit_reached = False
        return self._relay_events(withheld)

    def _match(self, event: bytes, shape: ChunkShape) -> bytes | None:
        """Count an event like the last one that was decoded and return it without usage; None if it is not like that.

        Inside a JSON string every quote is escaped. Therefore an event with the same bytes before and after its text
        differs only in id, time and text, or in members beside the text that do not matter here: it is neither an error
        nor a last chunk, and its choice has not finished.
        """
        usage = self._usage
        start = event.rfind(usage)
        if (
            start < 0
            or not event.startswith(shape.opening, shape.opening_at)
            or not event.startswith(shape.kind, shape.kind_at)
            or not event.startswith(shape.begin)
            or not event.endswith(shape.closing, 0, start)
            or not event.endswith(shape.ending)
        ):
            return None
        count = event[start + len(usage) : -shape.ending_length].partition(shape.between)[2]
        if not count.isdigit():
            return None
        output = int(count)
        if not output or output > self.limit:
            return None
        if output > self._output:
            self._output = output
        return event[:start] + b"}\n\n"

    def _relay_events(self, block: bytes) -> bytes:
        """Count whole events and return those for the client; decode every one that does not fit the template."""
        out: list[bytes] = []
        events = block.split(b"\n\n")
        for position, event in enumerate(events):
            if self._shape is not None and b"\n" not in event:
                relayed = self._match(event + b"\n\n", self._shape)
                if relayed is not None:
                    out.append(relayed)
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
                raise EngineFailed(f"The engine sent an event that is not a chunk: {error}") from None
            if chunk.error is not msgspec.UNSET and bytes(chunk.error) != b"null":
                self.error = bytes(chunk.error)
                break
            for choice in chunk.choices:
                choice.index += self.batch.first
            if not self._count(chunk):
                self._withheld = b"\n\n".join(events[position:])
                break
            if chunk.choices:
                if self.batch.first and self.first_chunk is not None:
                    payload = of_batch(
                        payload, self.batch.first, self.first_chunk.id, self.first_chunk.created
                    )
                if b"\n" in payload:  # data of several lines; JSON has line breaks between its tokens only
                    payload = payload.replace(b"\n", b" ")
                relayed = strip_extras(payload, self._extras, self._calls) if self._relayed else payload
                out.append(b"data: %b\n\n" % relayed)
                if self._may_be_steady:
                    self._shape, self._usage = shape_of(payload)
        whole = not (self._splitter.partial or self.done or self.limit_reached or self.error is not None)
        self._steady = self._shape if whole else None
        return b"".join(out)

    @property
    def _may_be_steady(self) -> bool:
        """Whether further events may be like the one that was decoded and relayed as they came.

        With ids of tokens, no two are alike; text that is a call's input is rewritten.
        """
        alike = not self._extras.token_ids and not self._extras.calls.text_call
        one = self._relayed and self.choices == 1 and alike
        return one and self.content_started and not self.finish_reasons

    def _count(self, chunk: Chunk) -> bool:
        """Count one chunk; False when it is not relayed: it exceeds the limit, or the engine gave up the answer."""
        if self.first_chunk is None:
            self.first_chunk = ChunkHead(chunk.id, chunk.object, chunk.created)
        self.fingerprint = chunk.system_fingerprint or self.fingerprint
        if not chunk.choices:
            if chunk.usage is not None:
                self.tracker.set_totals(chunk.usage)
            return True
        content = any(choice.has_content() or self._carries_extras(choice) for choice in chunk.choices)
        if self._counts_ids and chunk.usage is None:
            chunk.usage = self._usage_by_ids(chunk, content)
        if self._exceeds_limit(chunk, content):
            self.limit_reached = True
            return False
        if chunk.usage is not None:
            self.tracker.update_choice(chunk.usage, chunk.choices[0].index)
            delta = chunk.choices[0].delta
            if delta is not None and (delta.reasoning or delta.reasoning_content):
                self.tracker.count_reasoning(chunk.usage)
        for choice in chunk.choices:
            if choice.finish_reason is not None:
                if choice.finish_reason in BROKEN_OFF:
                    self.error = b'{"message":"the engine gave up the answer"}'
                    return False
                self.finish_reasons[choice.index] = choice.finish_reason
        if content:
            self.content_started = True
            self.tracker.content_events += 1
        return True

    def _usage_by_ids(self, chunk: Chunk, content: bool) -> EngineUsage:
        """The running usage of an event without one, by its ids of tokens.

        vLLM sends none of reasoning that the request hides: an event with content has at least one token.
        """
        choice = chunk.choices[0]
        prompt = max(_entries(chunk.prompt_token_ids), _entries(choice.prompt_token_ids))
        output = max(_entries(choice.token_ids), int(content))
        return self.tracker.running_usage(choice.index, prompt, output)

    def _carries_extras(self, choice: ChunkChoice) -> bool:
        return carries_extras(
            self._extras, choice.logprobs, choice.finish_reason, choice.stop_reason, choice.token_ids
        )

    def _exceeds_limit(self, chunk: Chunk, content: bool) -> bool:
        """Whether relaying the chunk would deliver more output tokens than are paid for."""
        if chunk.usage is not None:
            output = self.tracker.output_after(chunk.usage, chunk.choices[0].index)
        elif content and not self.tracker.reported:
            output = self.tracker.content_events + 1
        else:
            return False
        self.withheld_output = output
        return output > self.limit


def _entries(ids: msgspec.Raw | msgspec.UnsetType) -> int:
    """The number of entries of a JSON array of numbers; 0 for null."""
    text = b"" if ids is msgspec.UNSET else bytes(ids)
    return text.count(b",") + 1 if text[:1] == b"[" and text[1:-1].strip() else 0


def _payload(event: bytes) -> bytes:
    """The data of one event, without comments and other fields."""
    if event[:6] == b"data: " and b"\n" not in event:
        return event[6:]
    lines = [line[5:].lstrip(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines).strip()
