"""Reads the answers of four APIs, and compares every part of them with what belongs to their request."""

import json
import time
from typing import Any

from bench.cancels.asks import Ask
from bench.chaos.journal import Entry
from sim.engine.text import BYTES_PER_TOKEN


class Ids:
    """The ids that answers have had: each belongs to one request."""

    def __init__(self) -> None:
        self._owner: dict[str, int] = {}

    def belongs(self, value: str, number: int) -> bool:
        """Note an id of the request `number`; False when it is that of another one."""
        return self._owner.setdefault(value, number) == number


class Answer:
    """The answer to one request as it arrives; what is wrong with it is noted in its entry."""

    def __init__(self, ask: Ask, entry: Entry, ids: Ids) -> None:
        self._ask = ask
        self._entry = entry
        self._ids = ids
        self._text = ""
        self._kept = b""
        self._document_id = ""
        self._prompt_tokens = 0
        self._ended = False

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the status and the headers, by name in lower case."""
        self._entry.status = status
        self._entry.request_id = headers.get("x-request-id", "")
        self._own("the request's id", self._entry.request_id)

    def take(self, data: bytes) -> None:
        """Take a part of the body."""
        self._kept += data
        if self._entry.status == 200 and self._ask.stream:
            *lines, self._kept = self._kept.split(b"\n")
            for line in lines:
                self._line(line)

    def end(self) -> None:
        """Take the end of the body."""
        if self._entry.status != 200:
            self._refused()
        elif self._ask.stream:
            if not self._ended and not self._entry.code:
                self._wrong(f"the stream has no end: {self._kept!r}")
        else:
            self._event(json.loads(self._kept))
            self._entry.finished = True
        if self._entry.finished and self._text != self._ask.expected:
            self._wrong(f"{len(self._text)} of {len(self._ask.expected)} characters came")

    def _refused(self) -> None:
        document = json.loads(self._kept)
        self._entry.code = str(document["error"].get("code") or document["error"]["type"])

    def _line(self, line: bytes) -> None:
        if not line.startswith(b"data: "):
            return
        if line == b"data: [DONE]":
            if self._ask.api == "messages":
                self._wrong("[DONE] is no event of messages")
            self._finish()
            return
        self._event(json.loads(line[6:]))

    def _finish(self) -> None:
        if self._ended:
            self._wrong("the stream ended twice")
        self._ended = True
        self._entry.finished = not self._entry.code

    def _event(self, event: dict[str, Any]) -> None:
        if event.get("type") == "error" or event.get("error"):
            self._entry.code = str(event["error"].get("code") or event["error"]["type"])
            return
        if self._ask.api == "messages":
            self._of_messages(event)
        elif self._ask.api == "responses":
            self._of_responses(event)
        else:
            self._of_chat(event)

    def _of_chat(self, event: dict[str, Any]) -> None:
        self._identify(event["id"])
        for choice in event["choices"]:
            said = choice.get("message") or choice.get("delta") or choice
            self._say(said.get("content") or said.get("text") or "")
        if usage := event.get("usage"):
            self._claim(usage["prompt_tokens"], usage["completion_tokens"])

    def _of_messages(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind in ("message", "message_start"):
            message = event.get("message", event)
            self._identify(message["id"])
            self._prompt_tokens = _prompt_of(message["usage"])
            for block in message["content"]:
                self._say(block["text"])
        elif kind == "content_block_delta":
            self._say(event["delta"]["text"])
        elif kind == "message_stop":
            self._finish()
        usage = event.get("usage")
        if usage and kind in ("message", "message_delta"):
            self._claim(_prompt_of(usage) or self._prompt_tokens, usage["output_tokens"])

    def _of_responses(self, event: dict[str, Any]) -> None:
        kind = event.get("type", "whole")
        response = event if kind == "whole" else event.get("response")
        if response:
            self._identify(response["id"])
            text = "".join(part["text"] for item in response["output"] for part in item["content"])
            if kind == "whole":
                self._say(text)
            elif text != self._text:
                self._wrong(f"{kind} has another text than its deltas")
            if response["usage"]:
                self._claim(response["usage"]["input_tokens"], response["usage"]["output_tokens"])
        elif kind == "response.output_text.delta":
            self._say(event["delta"])
        if self._document_id and "item_id" in event and self._document_id[5:] not in event["item_id"]:
            self._wrong(f"item {event['item_id']} in {self._document_id}")

    def _identify(self, value: str) -> None:
        if self._document_id not in ("", value):
            self._wrong(f"its id was {self._document_id} and is {value}")
        self._document_id = value
        self._own("its id", value)

    def _own(self, what: str, value: str) -> None:
        if not value or not self._ids.belongs(value, self._ask.number):
            self._wrong(f"{what} {value!r} is that of another request")

    def _say(self, text: str) -> None:
        self._text += text
        if not self._ask.expected.startswith(self._text):
            self._wrong(f"the text is of another answer: {self._text[-80:]!r}")
        self._entry.deliver(time.monotonic(), len(text) // BYTES_PER_TOKEN)

    def _claim(self, prompt: int, output: int) -> None:
        self._entry.claimed = (int(prompt), int(output))

    def _wrong(self, told: str) -> None:
        self._entry.wrong = self._entry.wrong or told


def _prompt_of(usage: dict[str, Any]) -> int:
    """Anthropic counts cached tokens beside the others."""
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(int(usage.get(name) or 0) for name in names)
