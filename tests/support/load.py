"""Load of streaming chat requests, each remembered with what the client saw of it."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from sim.engine.text import BYTES_PER_TOKEN


@dataclass
class Seen:
    """One request from the client's side."""

    status: int = 0
    request_id: str = ""
    tokens: int = 0
    """Tokens delivered, by the simulated engine's four bytes each."""
    finished: bool = False
    """The stream ended with [DONE]."""
    error: str = ""
    problem: dict[str, Any] = field(default_factory=dict)
    """The API's error object, whether it came as an answer or as an event of a stream."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of the answer, names in lower case."""
    body: dict[str, object] = field(default_factory=dict)
    asked_at: float = 0.0
    """When it was sent, by the monotonic clock."""
    first_token: asyncio.Event = field(default_factory=asyncio.Event)
    at: list[float] = field(default_factory=list)
    """When each token came, by the monotonic clock."""

    @property
    def wait_s(self) -> float:
        """Seconds from asking to the first content."""
        return self.at[0] - self.asked_at

    def tokens_before(self, instant: float) -> int:
        """How many tokens had come by then."""
        return sum(at <= instant for at in self.at)


async def stream(
    session: aiohttp.ClientSession,
    base_url: str,
    key: str,
    model: str,
    *,
    max_tokens: int,
    seen: Seen,
    prompt: str = "hello",
    system: str = "",
) -> None:
    """Send one streaming chat request and record what comes back into `seen`; transport errors are recorded too."""
    instructions = [{"role": "system", "content": system}] if system else []
    payload = {
        "model": model,
        "max_tokens": max_tokens,
        "stream": True,
        "messages": [*instructions, {"role": "user", "content": prompt}],
        "temperature": 0,
    }
    seen.asked_at = time.monotonic()
    try:
        async with session.post(
            f"{base_url}/chat/completions", json=payload, headers={"Authorization": f"Bearer {key}"}
        ) as answer:
            seen.status = answer.status
            seen.headers = {name.lower(): value for name, value in answer.headers.items()}
            seen.request_id = seen.headers.get("x-request-id", "")
            if answer.status != 200:
                seen.body = await answer.json()
                seen.problem = dict(seen.body["error"])  # type: ignore[call-overload]
                return
            async for raw in answer.content:
                _event(raw.strip(), seen)
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        seen.error = f"{type(error).__name__}: {error}"


async def patient_stream(
    session: aiohttp.ClientSession,
    base_url: str,
    key: str,
    model: str,
    *,
    max_tokens: int,
    seen: Seen,
    prompt: str,
) -> None:
    """`stream`, asked again while the answer is 503, as the SDKs do: a busy machine may refuse, and says so."""
    while True:
        await stream(session, base_url, key, model, max_tokens=max_tokens, seen=seen, prompt=prompt)
        if seen.status != 503:
            return
        await asyncio.sleep(0.2)


def _event(line: bytes, seen: Seen) -> None:
    if not line.startswith(b"data: "):
        return
    data = line[6:]
    if data == b"[DONE]":
        seen.finished = True
        return
    event = json.loads(data)
    if "error" in event:
        seen.problem = event["error"]
        seen.error = str(seen.problem.get("message", seen.problem))
        return
    for choice in event.get("choices", []):
        if content := choice.get("delta", {}).get("content"):
            count = len(content) // BYTES_PER_TOKEN
            seen.tokens += count
            seen.at += [time.monotonic()] * count
            seen.first_token.set()


def session() -> aiohttp.ClientSession:
    """A client session without pooling: every request is a connection of its own, spread over API processes."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout(total=180)
    )
