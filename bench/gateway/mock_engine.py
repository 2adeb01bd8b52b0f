"""A fast mock engine: one process with asyncio and httptools, vLLM's stream format with running usage.

The request body determines the answer: `max_tokens` chunks, `seed` milliseconds apart (0 = all at once). One
timer serves all streams with the same interval, so that the engine itself is not the bottleneck.
"""

import argparse
import asyncio
import json
import socket

import httptools
import uvloop

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
PROMPT = 20
"""Number of prompt tokens that every usage object reports."""


def event(body: bytes) -> bytes:
    """Return one event as one HTTP chunk."""
    data = b"data: " + body + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def piece(request_id: bytes, delta: bytes, tokens: int, finish: bytes) -> bytes:
    """Return one of vLLM's chunks."""
    return event(
        b'{"id":"chatcmpl-%s","object":"chat.completion.chunk","created":1700000000,"model":"qwen3.5-397b",'
        b'"choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s,"token_ids":null}],'
        b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}'
        % (request_id, delta, finish, PROMPT, PROMPT + tokens, tokens)
    )


def ending(request_id: bytes, tokens: int) -> bytes:
    """Return usage, [DONE] and the end of the body."""
    last = event(
        b'{"id":"chatcmpl-%s","object":"chat.completion.chunk","created":1700000000,"model":"qwen3.5-397b",'
        b'"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":0}}}' % (request_id, PROMPT, PROMPT + tokens, tokens)
    )
    return last + event(b"[DONE]") + b"0\r\n\r\n"


def word(request_id: bytes, position: int, count: int) -> bytes:
    """Return the chunk of one token."""
    finish = b'"length"' if position == count else b"null"
    return piece(request_id, b'{"content":" word"}', position, finish)


def whole(tokens: int) -> bytes:
    """Return an answer that is not streamed, for direct requests."""
    body = json.dumps(
        {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "qwen3.5-397b",
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": " word" * tokens}, "finish_reason": "length"}
            ],
            "usage": {"prompt_tokens": PROMPT, "total_tokens": PROMPT + tokens, "completion_tokens": tokens},
        }
    ).encode()  # fmt: skip
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


class Pacer:
    """Writes the next chunk of every paced stream at its interval."""

    def __init__(self) -> None:
        self.streams: dict[int, set[Connection]] = {}

    def add(self, distance_ms: int, connection: "Connection") -> None:
        """Add a stream with an interval of `distance_ms`; the first one starts the timer."""
        members = self.streams.setdefault(distance_ms, set())
        if not members:
            asyncio.get_running_loop().call_later(
                distance_ms / 1000, self._turn, distance_ms, asyncio.get_running_loop().time()
            )
        members.add(connection)

    def _turn(self, distance_ms: int, started: float) -> None:
        members = self.streams[distance_ms]
        for connection in list(members):
            if not connection.advance():
                members.discard(connection)
        if members:
            loop = asyncio.get_running_loop()
            due = max(started + 2 * distance_ms / 1000, loop.time())
            loop.call_at(due, self._turn, distance_ms, due - distance_ms / 1000)


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, pacer: Pacer) -> None:
        self.pacer = pacer
        self.parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport | None = None
        self.body = b""
        self.request_id = b"1"
        self.position = self.count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self.request_id = value

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        asked = json.loads(self.body or b"{}")
        self.body = b""
        self.position, self.count = 0, asked.get("max_tokens", 16)
        if not asked.get("stream"):
            self.transport.write(whole(self.count))
            return
        opening = HEAD + piece(self.request_id, b'{"role":"assistant","content":""}', 0, b"null")
        distance_ms = asked.get("seed", 0)
        if distance_ms:
            self.transport.write(opening)
            self.pacer.add(distance_ms, self)
            return
        words = b"".join(word(self.request_id, i + 1, self.count) for i in range(self.count))
        self.transport.write(opening + words + ending(self.request_id, self.count))

    def advance(self) -> bool:
        """Write the next chunk; returns False when it was the last."""
        if self.transport is None:
            return False
        self.position += 1
        self.transport.write(word(self.request_id, self.position, self.count))
        if self.position < self.count:
            return True
        self.transport.write(ending(self.request_id, self.count))
        return False


async def serve(port: int) -> None:
    pacer = Pacer()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(pacer), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, required=True)
    uvloop.run(serve(arguments.parse_args().port))
