"""Builds one answer: texts, stop strings, finish reasons, usage, and vLLM's JSON for them."""

import msgspec

from sim.engine.model import EngineModel, Sequence
from sim.engine.text import BYTES_PER_TOKEN, token_ids

FINGERPRINT = "penstock-sim"
_encode = msgspec.json.encode


class Choice:
    """Text of one choice. Text that may begin a stop string is held back; a stop string ends the text.

    `interval`: tokens per event of a stream, as vLLM's `stream_interval`: the first and the last event are sent at
    once, the others when so many tokens are new.
    """

    def __init__(self, sequence: Sequence, stops: list[str], *, interval: int = 1) -> None:
        self.sequence = sequence
        self.received = 0
        self.stopped = ""
        self.finished = False
        self.parts: list[str] = []
        self.ids: list[int] = []
        """Ids of the tokens so far."""
        self.sent = 0
        """Tokens in the events so far."""
        self._unsent = ""
        self._interval = interval
        self._stops = stops
        self._hold = max((len(stop) for stop in stops), default=1) - 1
        self._tail = ""

    def feed(self, new: bytes) -> str:
        """Add the bytes of new tokens and return the text that can be emitted now."""
        self.received += len(new) // BYTES_PER_TOKEN
        self.ids += token_ids(new)
        shown = self._tail + new.decode()
        if self._stops:
            hits = [(shown.find(stop), stop) for stop in self._stops if stop in shown]
            if hits:
                position, self.stopped = min(hits)
                self._tail = ""
                shown = shown[:position]
                self.parts.append(shown)
                return shown
        done = self._at_end()
        keep = 0 if done or not self._hold else self._hold
        self._tail = shown[len(shown) - keep :] if keep else ""
        shown = shown[: len(shown) - keep] if keep else shown
        self.parts.append(shown)
        return shown

    def take(self, shown: str) -> tuple[str, list[int]] | None:
        """Add text to the next event; return its whole text and the ids of its tokens when it is due."""
        self._unsent += shown
        if self.sent and not self.exhausted and self.received - self.sent < self._interval:
            return None
        ids = self.ids[self.sent :]
        self.sent = self.received
        whole, self._unsent = self._unsent, ""
        return whole, ids

    def _at_end(self) -> bool:
        return self.sequence.finish_reason is not None and self.received >= self.sequence.generated

    @property
    def exhausted(self) -> bool:
        """Whether all tokens of this choice have been added."""
        return bool(self.stopped) or self._at_end()

    @property
    def reason(self) -> str:
        """OpenAI's finish_reason."""
        return "stop" if self.stopped else self.sequence.finish_reason or "stop"


class Answer:
    """The answer to one request, streamed or not; `chat` selects the chat format."""

    def __init__(
        self,
        *,
        chat: bool,
        request_id: str,
        created: int,
        model: str,
        prompt_tokens: int,
        choices: list[Choice],
        usage: bool,
        continuous: bool,
        prompt_ids: list[list[int]] | None = None,
    ) -> None:
        """`prompt_ids`: by choice, the ids of its prompt's tokens, when they are asked for."""
        self.choices = choices
        self.prompt_tokens = prompt_tokens
        self._chat = chat
        self._usage = usage
        self._continuous = continuous
        self._prompt_ids = prompt_ids
        self._head = {"id": request_id, "object": "", "created": created, "model": model}
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._chunk_head = b"data: " + _encode({**self._head, "object": kind})[:-1] + b',"choices":['
        self._opened: set[int] = set()

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.finished for choice in self.choices)

    def feed(self, engine: EngineModel, news: list[tuple[int, bytes]]) -> bytes:
        """Add new tokens by choice and return the SSE events for them."""
        merged: dict[int, bytes] = {}
        for index, new in news:
            merged[index] = merged.get(index, b"") + new
        events: list[bytes] = []
        for index, new in merged.items():
            choice = self.choices[index]
            if choice.finished:
                continue
            due = choice.take(choice.feed(new))
            if choice.stopped:
                engine.stop(choice.sequence)
            if self._chat and not self._opened:
                events += [self._opening(number) for number in range(len(self.choices))]
                self._opened.update(range(len(self.choices)))
            if due is None:
                continue
            if choice.exhausted:
                choice.finished = True
            events.append(self._event(index, choice, *due))
        return b"".join(events)

    def _opening(self, index: int) -> bytes:
        body = (
            b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            % index
        )
        prompt = None if self._prompt_ids is None or index else self._prompt_ids[0]
        extra = b',"prompt_token_ids":%s,"prompt_text":null}\n\n' % _encode(prompt)
        return self._chunk_head + body + self._running_usage(self.prompt_tokens, 0) + extra

    def _event(self, index: int, choice: Choice, shown: str, ids: list[int]) -> bytes:
        words, asked = _encode(shown), self._prompt_ids is not None
        tokens_of_event = _encode(ids if asked else None)
        if choice.finished:
            stop = _encode(choice.stopped or None)
            finish = b'"%s","stop_reason":%s' % (choice.reason.encode(), stop)
        else:
            finish = b"null" if self._chat else b'null,"stop_reason":null'
        if self._chat:
            body = b'{"index":%d,"delta":{"content":%s},"logprobs":null,"finish_reason":%s,"token_ids":%s}]'
            members: tuple[object, ...] = (index, words, finish, tokens_of_event)
        else:
            body = (
                b'{"index":%d,"text":%s,"logprobs":null,"finish_reason":%s,'
                b'"prompt_token_ids":%s,"token_ids":%s}]'
            )
            prompt = self._prompt_ids[index] if self._prompt_ids and index not in self._opened else None
            self._opened.add(index)
            members = (index, words, finish, _encode(prompt), tokens_of_event)
        mark = (
            b',"system_fingerprint":"%s"' % FINGERPRINT.encode()
            if choice.finished and not self._usage
            else b""
        )
        tokens = choice.sequence.generated if choice.finished else choice.received
        return (
            self._chunk_head
            + body % members
            + mark
            + self._running_usage(choice.sequence.prompt_tokens, tokens)
            + b"}\n\n"
        )

    def _running_usage(self, prompt_tokens: int, tokens: int) -> bytes:
        """The counts of one choice and its own prompt."""
        if not self._continuous:
            return b""
        numbers = (prompt_tokens, prompt_tokens + tokens, tokens)
        counts = b'"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d' % numbers
        return b',"usage":{' + counts + b',"completion_tokens_details":null}'

    def closing(self) -> bytes:
        """Return the last events of a stream: usage if requested, then [DONE]."""
        if not self._usage:
            return b"data: [DONE]\n\n"
        tail = b'],"usage":%s,"system_fingerprint":"%s"}\n\ndata: [DONE]\n\n'
        return self._chunk_head + tail % (_encode(self.usage()), FINGERPRINT.encode())

    def usage(self) -> dict[str, object]:
        """Return vLLM's final usage object."""
        output = sum(choice.sequence.generated for choice in self.choices)
        cached = self.choices[0].sequence.cached_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + output,
            "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": cached, "created_cache_tokens": 0},
        }

    def full_body(self) -> bytes:
        """Return the body of an answer that is not streamed."""
        choices: list[dict[str, object]] = []
        for index, choice in enumerate(self.choices):
            words = "".join(choice.parts)
            said: dict[str, object] = (
                {"message": {"role": "assistant", "content": words, "refusal": None, "tool_calls": []}}
                if self._chat
                else {"text": words}
            )
            end: dict[str, object] = {
                "logprobs": None,
                "finish_reason": choice.reason,
                "stop_reason": choice.stopped or None,
            }
            if self._prompt_ids is not None:
                end["token_ids"] = choice.ids
                if not self._chat:
                    end["prompt_token_ids"] = self._prompt_ids[index]
            choices.append({"index": index, **said, **end})
        head = {**self._head, "object": "chat.completion" if self._chat else "text_completion"}
        body = {**head, "choices": choices, "service_tier": None, "system_fingerprint": FINGERPRINT}
        if self._chat and self._prompt_ids is not None:
            body["prompt_token_ids"] = self._prompt_ids[0]
        return _encode({**body, "usage": self.usage()} if self._usage else body)
