"""What clients send: requests of four APIs whose answers are recognisably their own, and how their clients leave."""

import json
import random
from dataclasses import dataclass
from typing import Any

import msgspec

from sim.engine.schemas import ChatBody, CompletionBody
from sim.engine.text import HashSampler, count

APIS = {
    "chat": "/v1/chat/completions", "text": "/v1/completions", "messages": "/v1/messages", "responses": "/v1/responses",
}  # fmt: skip
"""Paths by API."""
WAYS = {
    "stays": 24, "early": 16, "head": 16, "middle": 26, "end": 10, "unsent": 8,
}  # fmt: skip
"""How the client of a connection's last request ends, and how many of a hundred do so.

stays: reads the answer. early: leaves after a moment, whatever has come. head: leaves when the head has come. middle:
leaves after some tokens. end: leaves at the last byte. unsent: leaves with a part of its request sent.
"""
_LONGEST_EARLY_S = 0.25
"""Longest moment after which a client leaves whatever has come."""
_WORDS = (
    "river",
    "lake",
    "wheel",
    "mill",
    "weir",
    "sluice",
    "flume",
    "gate",
    "pond",
    "gear",
    "stone",
    "dam",
    "canal",
)


@dataclass(frozen=True)
class Ask:
    """One request."""

    number: int
    api: str
    stream: bool
    body: dict[str, Any]
    expected: str
    """What the simulated engine generates for its prompt, all of it."""
    prompt_tokens: int
    tokens: int
    """Output tokens of the whole answer."""

    @property
    def kind(self) -> str:
        """The API, and whether the answer is streamed."""
        return f"{self.api} {'stream' if self.stream else 'whole'}"

    @property
    def label(self) -> str:
        """The end user that the request names, by which its usage row is found."""
        return f"ask-{self.number}"

    def raw(self, key: str) -> bytes:
        """Return the request as it is sent."""
        body = json.dumps(self.body).encode()
        head = (
            f"POST {APIS[self.api]} HTTP/1.1\r\nHost: penstock\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@dataclass(frozen=True)
class Script:
    """What one connection does: some requests, at the end of which its client leaves."""

    customer: int
    asks: list[Ask]
    together: bool
    """Whether all are sent at once, without waiting for answers; otherwise each when the one before it is answered."""
    leaves_in: int
    """The index of the request that the client leaves in the way of `way`; the later ones were sent in vain."""
    way: str
    after_s: float
    """The moment of the ways `early` and `unsent`."""
    after_tokens: int
    """The tokens of the way `middle`."""
    reset: bool
    """Whether it leaves with a reset of the connection, not with an orderly end."""


def draw(seed: int, number: int, model: str, customers: int) -> Script:
    """Return the connection `number` of a seed: the same whenever it is drawn."""
    rng = random.Random(f"{seed}/{number}")
    requests = rng.choices((1, 2, 3), weights=(6, 3, 1))[0]
    asks = [_ask(rng, number * 10 + place, model) for place in range(requests)]
    way = rng.choices(list(WAYS), weights=list(WAYS.values()))[0]
    together = requests > 1 and rng.random() < 0.5
    leaves_in = rng.randrange(requests) if together else requests - 1
    if way == "unsent":
        together, leaves_in = False, requests - 1
    if way == "stays":
        leaves_in = requests - 1
    after_tokens = rng.randrange(1, max(2, asks[leaves_in].tokens))
    return Script(
        customer=rng.randrange(customers),
        asks=asks,
        together=together,
        leaves_in=leaves_in,
        way=way,
        after_s=rng.uniform(0.0, _LONGEST_EARLY_S) * rng.random(),
        after_tokens=after_tokens,
        reset=rng.random() < 0.5,
    )


def _ask(rng: random.Random, number: int, model: str) -> Ask:
    api = rng.choice(list(APIS))
    stream = rng.random() < 0.7
    tokens = rng.choice((1, 4, 16, 40, 80))
    prompt = f"Question {number}: {' '.join(rng.choices(_WORDS, k=rng.randrange(2, 40)))}?"
    label = f"ask-{number}"
    messages = [{"role": "user", "content": prompt}]
    body: dict[str, Any] = {"model": model, "stream": stream}
    if api == "chat":
        body |= {"messages": messages, "max_tokens": tokens, "user": label}
    elif api == "text":
        body |= {"prompt": prompt, "max_tokens": tokens, "user": label}
    elif api == "messages":
        body |= {"messages": messages, "max_tokens": tokens, "metadata": {"user_id": label}}
    else:
        body |= {"input": prompt, "max_output_tokens": tokens, "user": label, "store": rng.random() < 0.5}
    if stream and api in ("chat", "text") and rng.random() < 0.7:
        body["stream_options"] = {"include_usage": True}
    engine = {"prompt": prompt} if api == "text" else {"messages": messages}
    content = msgspec.convert(engine, CompletionBody if api == "text" else ChatBody).prompts()[0]
    sampler = HashSampler(content, 0, 0)
    expected = b"".join(sampler.next() for _ in range(tokens)).decode()
    return Ask(number, api, stream, body, expected, count(content), tokens)
