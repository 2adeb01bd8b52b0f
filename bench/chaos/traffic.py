"""A mixed load: clients of several tenants that stream, ask for whole answers, use tools, read slowly, and leave."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from bench.chaos.journal import Entry, Journal
from sim.engine.schemas import ChatBody, CompletionBody
from sim.engine.text import BYTES_PER_TOKEN, HashSampler, count
from workers.catalog import load_catalog
from workers.plan import TINY

KINDS = {
    "stream": 36, "whole": 18, "tools whole": 10, "tools stream": 5, "two choices": 6, "text": 4, "unlimited": 4,
    "leaves": 10, "leaves early": 4, "slow reader": 3,
}  # fmt: skip
"""Kinds of requests, and how many of a hundred are of each."""
TENANTS = {"Alder": "50", "Birch": "50", "Cedar": "50", "Dry": "0.004"}
"""Organisations and their prepaid credit in dollars; Dry runs out of it."""
LONGEST = load_catalog().model(TINY).max_output_tokens
"""Output tokens of an answer without max_tokens: the model's limit."""
ANSWER_TIMEOUT_S = 90.0
PAUSE_S = 0.4
"""Longest pause of a client between two requests; ten times as long after a refused connection."""
_WORDS = (
    "river",
    "lake",
    "wheel",
    "mill",
    "weir",
    "sluice",
    "flume",
    "race",
    "gate",
    "pond",
    "gear",
    "stone",
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
_PREFIX = "You answer short questions about water mills. " * 4


@dataclass(frozen=True)
class Customer:
    """An organisation with a key."""

    name: str
    tenant_id: str
    key: str


@dataclass
class Ask:
    """A request to send."""

    kind: str
    path: str
    body: dict[str, Any]
    expected: list[str]
    """What the engine generates for each choice, as long as the answer may be."""
    prompt_tokens: int
    leave_after: int = -1
    """Tokens after which the client leaves; -1 = it stays."""

    @property
    def max_tokens(self) -> int:
        """Output tokens over all choices."""
        return sum(map(len, self.expected)) // BYTES_PER_TOKEN


def draw(rng: random.Random, model: str, number: int) -> Ask:
    """Draw a request; its prompt occurs once, so that its answer tells whose it is."""
    kind = rng.choices(list(KINDS), weights=list(KINDS.values()))[0]
    words = " ".join(rng.choices(_WORDS, k=rng.randrange(2, 60)))
    prompt = f"Question {number}: {words}?"
    tokens = rng.choice((4, 24, 80, 200, 320))
    choices = 2 if kind == "two choices" else 1
    body: dict[str, Any] = {"model": model, "max_tokens": tokens, "n": choices, "temperature": 0}
    if kind == "text":
        body |= {"prompt": prompt, "stream": True}
        content = msgspec.convert(body, CompletionBody).prompts()[0]
    else:
        messages = [{"role": "system", "content": _PREFIX}] if rng.random() < 0.5 else []
        body |= {"messages": [*messages, {"role": "user", "content": prompt}]}
        body |= {"stream": kind not in ("whole", "tools whole")}
        content = msgspec.convert(body, ChatBody).prompts()[0]
    if kind.startswith("tools"):
        body["tools"] = [_TOOL]
    if kind == "unlimited":
        del body["max_tokens"]
        tokens = LONGEST
    if body["stream"] and rng.random() < 0.7:
        body["stream_options"] = {"include_usage": True}
    expected = [_answer(content, choice, tokens) for choice in range(choices)]
    leave_after = {"leaves": rng.randrange(1, max(tokens // 2, 2)), "leaves early": 0}.get(kind, -1)
    path = "/v1/completions" if kind == "text" else "/v1/chat/completions"
    return Ask(kind, path, body, expected, count(content), leave_after)


def _answer(content: bytes, choice: int, tokens: int) -> str:
    sampler = HashSampler(content, 0, choice)
    return b"".join(sampler.next() for _ in range(tokens)).decode()


@dataclass
class Traffic:
    """Clients in a closed loop, and the journal that they write."""

    rng: random.Random
    model: str
    customers: list[Customer]
    urls: Callable[[], tuple[str, str]]
    """Returns the API's address, and its address through the proxy."""
    journal: Journal
    clients: int = 24
    _numbers: int = 0
    _going: asyncio.Event = field(default_factory=asyncio.Event)
    _open: set[asyncio.Task[None]] = field(default_factory=set)
    _callers: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        """Begin to send."""
        self._going.set()
        self._callers = [asyncio.create_task(self._caller(number)) for number in range(self.clients)]

    def pause(self) -> None:
        """Begin no further requests."""
        self._going.clear()

    def resume(self) -> None:
        """Begin requests again."""
        self._going.set()

    async def quiet(self, timeout_s: float) -> None:
        """Wait until no request is open; clients of those that are still open then leave."""
        if self._open:
            await asyncio.wait(set(self._open), timeout=timeout_s)
        for task in set(self._open):
            task.cancel()
        if self._open:
            await asyncio.gather(*self._open, return_exceptions=True)

    async def close(self) -> None:
        """End all clients."""
        for task in self._callers:
            task.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)

    async def _caller(self, number: int) -> None:
        rng = random.Random(self.rng.random())
        proxied = number % 4 == 0
        while True:
            await self._going.wait()
            customer = self.customers[0 if number == 0 else rng.randrange(len(self.customers))]
            self._numbers += 1
            ask = draw(rng, self.model, self._numbers)
            entry = Entry(
                self._numbers,
                customer.tenant_id,
                ask.kind,
                ask.prompt_tokens,
                ask.max_tokens,
                time.monotonic(),
            )
            self.journal.entries.append(entry)
            task = asyncio.create_task(self._send(customer, ask, entry, self.urls()[proxied]))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            await asyncio.wait({task})
            await asyncio.sleep(rng.uniform(0, PAUSE_S) * (10 if entry.broken and not entry.status else 1))

    async def _send(self, customer: Customer, ask: Ask, entry: Entry, url: str) -> None:
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        connector = aiohttp.TCPConnector(force_close=True)
        try:
            async with aiohttp.ClientSession(
                connector=connector, timeout=timeout, read_bufsize=4096
            ) as session:
                await self._exchange(session, customer, ask, entry, url)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            entry.broken = f"{type(error).__name__}: {error}"[:200]
        except asyncio.CancelledError:
            entry.left = True
            raise
        finally:
            entry.ended_at = time.monotonic()

    async def _exchange(
        self, session: aiohttp.ClientSession, customer: Customer, ask: Ask, entry: Entry, url: str
    ) -> None:
        headers = {"Authorization": f"Bearer {customer.key}"}
        request = session.post(url + ask.path, json=ask.body, headers=headers)
        if ask.leave_after == 0:
            try:
                answer = await asyncio.wait_for(request, random.Random(entry.number).uniform(0.0, 0.3))
            except TimeoutError:
                entry.left = True
                return
        else:
            answer = await request
        async with answer:
            entry.status = answer.status
            entry.request_id = answer.headers.get("x-request-id", "")
            reader = Reader(ask, entry)
            if answer.status != 200:
                reader.refusal(await answer.read())
            elif ask.body["stream"]:
                await self._stream(answer, ask, entry, reader)
            else:
                reader.whole(await answer.read())

    async def _stream(self, answer: aiohttp.ClientResponse, ask: Ask, entry: Entry, reader: "Reader") -> None:
        async for line in answer.content:
            reader.line(line)
            if 0 <= ask.leave_after <= entry.tokens:
                entry.left = not entry.finished
                return
            if ask.kind == "slow reader" and entry.tokens:
                await asyncio.sleep(0.02)


class Reader:
    """Reads an answer into an entry, and compares its text with what the engine generates."""

    def __init__(self, ask: Ask, entry: Entry) -> None:
        self._ask = ask
        self._entry = entry
        self._texts = [""] * len(ask.expected)
        self._ended = False

    def line(self, line: bytes) -> None:
        """Take one line of an event stream."""
        line = line.strip()
        if not line.startswith(b"data: "):
            return
        if line == b"data: [DONE]":
            if self._ended:
                self._entry.wrong = "[DONE] came twice"
            self._ended = True
            self._entry.finished = not self._entry.code  # it follows an error, too
            return
        event = json.loads(line[6:])
        if "error" in event:
            self._entry.code = str(event["error"].get("code"))
            return
        for choice in event.get("choices", ()):
            self._text(choice["index"], choice.get("text") or choice.get("delta", {}).get("content") or "")
        self._usage(event.get("usage"))

    def whole(self, body: bytes) -> None:
        """Take an answer in one piece."""
        document = json.loads(body)
        for choice in document["choices"]:
            self._text(choice["index"], choice.get("text") or choice["message"]["content"] or "")
        self._usage(document.get("usage"))
        self._entry.finished = True

    def refusal(self, body: bytes) -> None:
        """Take an error."""
        self._entry.code = str(json.loads(body)["error"].get("code"))

    def _text(self, index: int, text: str) -> None:
        if not text:
            return
        self._texts[index] += text
        if not self._ask.expected[index].startswith(self._texts[index]):
            self._entry.wrong = f"choice {index} differs: {self._texts[index][-80:]!r}"
        self._entry.deliver(time.monotonic(), len(text) // BYTES_PER_TOKEN)

    def _usage(self, usage: dict[str, Any] | None) -> None:
        if usage:
            self._entry.claimed = (int(usage["prompt_tokens"]), int(usage["completion_tokens"]))
