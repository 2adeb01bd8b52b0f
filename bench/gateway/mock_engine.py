"""A fast mock engine: one process with asyncio and httptools that answers as vLLM 0.32 does.

The request decides the answer: `max_tokens` tokens. `seed` is the pace: `seed % EACH` milliseconds from token to token
(0 = the whole answer at once). A chunk holds `stream_interval` tokens, the first and the last as soon as they exist.
A seed of EACH and above makes every token a chunk whatever interval was asked for, so that gateways that ask for
different intervals can be compared at equal numbers of chunks.

Paced streams belong to batches of BATCH streams. A batch advances at once, as an engine's step does. The text of a
chunk ends in `POSITION@MICROSECONDS`: number of its last token, and the monotonic clock when it was written.
"""

import argparse
import asyncio
import json
import time

import httptools
import uvloop

MODEL = "qwen3.5-397b"
"""The only model that the engine lists."""
EACH = 1_000_000
"""Added to a seed: every token is a chunk."""
BATCH = 256
"""Most streams that advance in one step."""
PROMPT = 20
"""Number of prompt tokens that every usage object reports."""
CONTEXT = 32_768
"""Context length in tokens that /v1/models states."""
_SCHEMAS = "#/components/schemas/"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Counters:
    """The counters and gauges of /metrics."""

    def __init__(self) -> None:
        self.running = self.prompt = self.generated = self.requests = 0

    def text(self) -> bytes:
        """Return Prometheus text with vLLM's names."""
        labels = f'{{engine="0",model_name="{MODEL}"}}'
        values = {
            "num_requests_running": self.running,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": 0,
            "prompt_tokens_total": self.prompt,
            "prompt_tokens_cached_total": 0,
            "generation_tokens_total": self.generated,
            "num_preemptions_total": 0,
        }
        lines = [f"vllm:{name}{labels} {float(value)}" for name, value in values.items()]
        return ("\n".join(lines) + "\n").encode()


def event(body: bytes) -> bytes:
    """Return one event as one HTTP chunk."""
    return b"%x\r\ndata: %s\n\n\r\n" % (len(body) + 8, body)


class Answer:
    """One answer while it is generated."""

    __slots__ = (
        "_closing",
        "_each",
        "_opening",
        "_usage",
        "chat",
        "count",
        "interval",
        "position",
        "sent",
        "tail",
    )

    def __init__(self, asked: dict, request_id: bytes, *, chat: bool, honour_interval: bool) -> None:
        options = asked.get("stream_options") or {}
        self.chat = chat
        self.count = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
        each = (asked.get("seed") or 0) >= EACH
        self.interval = max(asked.get("stream_interval") or 1, 1) if honour_interval and not each else 1
        self.tail = bool(options.get("include_usage"))
        self.position = self.sent = 0
        kind = b"chat.completion.chunk" if chat else b"text_completion"
        self._opening = b'{"id":"%s-%s","object":"%s","created":1700000000,"model":"%s","choices":[' % (
            b"chatcmpl" if chat else b"cmpl", request_id, kind, MODEL.encode(),
        )  # fmt: skip
        self._each = b'{"index":0,"delta":{"content":"%s"}' if chat else b'{"index":0,"text":"%s"'
        self._closing = b',"token_ids":null}]' if chat else b',"stop_reason":null}]'
        self._usage = bool(options.get("continuous_usage_stats"))

    def begin(self) -> bytes:
        """Return the first chunk, which holds the role; nothing for text completions."""
        if not self.chat:
            return b""
        choice = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        return event(self._opening + choice + self._closing + self._counts(0) + b"}")

    def advance(self, tokens: int) -> bytes:
        """Generate tokens and return the chunk that is due, or b""; after the last token the end of the body too."""
        self.position = min(self.position + tokens, self.count)
        last = self.position == self.count
        fresh = self.position - self.sent
        if not last and self.sent and fresh < self.interval:
            return b""
        self.sent = self.position
        text = b" word" * (fresh - 1) + b" %d@%d" % (self.position, time.monotonic_ns() // 1000)
        finish = b',"logprobs":null,"finish_reason":' + (b'"length"' if last else b"null")
        body = self._opening + self._each % text + finish + self._closing + self._counts(self.position) + b"}"
        return event(body) + self._end() if last else event(body)

    def _counts(self, tokens: int) -> bytes:
        if not self._usage:
            return b""
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
            PROMPT, PROMPT + tokens, tokens,
        )  # fmt: skip

    def _end(self) -> bytes:
        last = b""
        if self.tail:
            last = event(
                self._opening + b'],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,'
                b'"prompt_tokens_details":{"cached_tokens":0}}}' % (PROMPT, PROMPT + self.count, self.count)
            )
        return last + event(b"[DONE]") + b"0\r\n\r\n"

    def at_once(self) -> bytes:
        """Return the whole stream."""
        parts = [_STREAM_HEAD, self.begin(), self.advance(1)]
        while self.position < self.count:
            parts.append(self.advance(min(self.interval, self.count - self.position)))
        return b"".join(parts)


def whole(asked: dict, *, chat: bool) -> bytes:
    """Return an answer in one piece; with tools, a call of the first one."""
    tokens = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
    choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    words = " word" * tokens
    if asked.get("tools"):
        name = asked["tools"][0]["function"]["name"]
        call = {
            "id": "call-1",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"text": words})},
        }
        choice |= {
            "message": {"role": "assistant", "content": None, "tool_calls": [call]},
            "finish_reason": "tool_calls",
        }
    elif chat:
        choice["message"] = {"role": "assistant", "content": words}
    else:
        choice["text"] = words
    usage = {"prompt_tokens": PROMPT, "total_tokens": PROMPT + tokens, "completion_tokens": tokens}
    kind = "chat.completion" if chat else "text_completion"
    document = {
        "id": "chatcmpl-1", "object": kind, "created": 1700000000, "model": MODEL, "choices": [choice],
        "usage": usage,
    }  # fmt: skip
    return plain(json.dumps(document, separators=(",", ":")).encode())


def plain(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    """Return an answer with its length."""
    return b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (
        status,
        kind,
        len(body),
        body,
    )


def schema(*, interval: bool) -> bytes:
    """Return an OpenAPI document with as much of vLLM's as tells whether requests have `stream_interval`."""
    fields = {"stream": {"type": "boolean"}, "max_tokens": {"type": "integer"}}
    if interval:
        fields["stream_interval"] = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}
    names = {"/v1/chat/completions": "ChatCompletionRequest", "/v1/completions": "CompletionRequest"}
    paths = {
        path: {
            "post": {"requestBody": {"content": {"application/json": {"schema": {"$ref": _SCHEMAS + name}}}}}
        }
        for path, name in names.items()
    }
    schemas = {name: {"type": "object", "properties": fields} for name in names.values()}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "FastAPI", "version": "0.1.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    return json.dumps(document).encode()


class Batch:
    """Streams of one interval that advance together."""

    def __init__(self, distance_s: float) -> None:
        self.members: set[Connection] = set()
        self._distance_s = distance_s
        self._due = asyncio.get_running_loop().time()
        self._again()

    def _again(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = max(self._due + self._distance_s, loop.time())
        loop.call_at(self._due, self._step)

    def _step(self) -> None:
        for connection in list(self.members):
            if not connection.advance():
                self.members.discard(connection)
        if self.members:
            self._again()


class Engine:
    """State that all connections share."""

    def __init__(self, *, honour_interval: bool) -> None:
        self.counters = Counters()
        self.honour_interval = honour_interval
        self._batches: dict[int, list[Batch]] = {}
        listed = {
            "id": MODEL,
            "object": "model",
            "created": 1700000000,
            "owned_by": "vllm",
            "max_model_len": CONTEXT,
        }
        self._pages = {
            b"/v1/models": plain(json.dumps({"object": "list", "data": [listed]}).encode()),
            b"/health": plain(b""),
            b"/version": plain(b'{"version":"0.32.0"}'),
            b"/openapi.json": plain(schema(interval=honour_interval)),
        }

    def page(self, path: bytes) -> bytes:
        """Return the answer to a GET."""
        if path == b"/metrics":
            return plain(self.counters.text(), b"text/plain; version=0.0.4")
        return self._pages.get(path) or plain(
            b'{"error":{"message":"Not Found","code":404}}', status=b"404 Not Found"
        )

    def pace(self, distance_ms: int, connection: "Connection") -> None:
        """Let a stream advance with a batch that has room."""
        batches = self._batches.setdefault(distance_ms, [])
        batches[:] = [each for each in batches if each.members]
        for batch in batches:
            if len(batch.members) < BATCH:
                break
        else:
            batch = Batch(distance_ms / 1000)
            batches.append(batch)
        batch.members.add(connection)


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = self._body = b""
        self._request_id = b"1"
        self._answer: Answer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._finish()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._transport is not None:
                self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._request_id = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        url, body, self._url, self._body = self._url, self._body, b"", b""
        if self._transport is None:
            return
        if self._parser.get_method() == b"GET":
            self._transport.write(self._engine.page(url))
            return
        self._generate(json.loads(body or b"{}"), chat=url.endswith(b"/chat/completions"))

    def _generate(self, asked: dict, *, chat: bool) -> None:
        counters = self._engine.counters
        counters.requests += 1
        counters.prompt += PROMPT
        if not asked.get("stream"):
            counters.generated += asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
            self._transport.write(whole(asked, chat=chat))
            return
        answer = Answer(asked, self._request_id, chat=chat, honour_interval=self._engine.honour_interval)
        distance_ms = (asked.get("seed") or 0) % EACH
        if not distance_ms:
            counters.generated += answer.count
            self._transport.write(answer.at_once())
            return
        counters.generated += 1
        self._transport.write(_STREAM_HEAD + answer.begin() + answer.advance(1))
        if answer.position < answer.count:
            counters.running += 1
            self._answer = answer
            self._engine.pace(distance_ms, self)

    def advance(self) -> bool:
        """Generate the next token; returns False when it was the last or the client has gone."""
        if self._answer is None or self._transport is None:
            return False
        data = self._answer.advance(1)
        self._engine.counters.generated += 1
        if data:
            self._transport.write(data)
        if self._answer.position < self._answer.count:
            return True
        self._finish()
        return False

    def _finish(self) -> None:
        if self._answer is not None:
            self._answer = None
            self._engine.counters.running -= 1


async def serve(port: int, *, honour_interval: bool) -> None:
    """Serve until cancelled."""
    engine = Engine(honour_interval=honour_interval)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(engine), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument(
        "--no-interval", action="store_true", help="like an engine without stream_interval"
    )
    given = arguments.parse_args()
    uvloop.run(serve(given.port, honour_interval=not given.no_interval))
