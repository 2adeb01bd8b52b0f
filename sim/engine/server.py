"""HTTP interface of the simulated engine: raw ASGI with vLLM's paths, statuses and error objects."""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import parse_qs
from uuid import uuid4

import msgspec

from core.clock import Clock
from sim.engine import text
from sim.engine.adapters import Adapters
from sim.engine.answer import FINGERPRINT, Answer, Choice
from sim.engine.embeddings import EmbeddingsBody, embeddings_body
from sim.engine.failpoints import Failpoints
from sim.engine.loop import EngineLoop, RequestOutputCollector
from sim.engine.metrics import SimMetrics
from sim.engine.model import Sequence, new_sequence
from sim.engine.request_log import RequestLog
from sim.engine.schemas import ChatBody, CompletionBody, RpcBody, TokenizeBody, UnloadBody
from workers.ranks import RANK_HEADER

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

VERSION = "0.32.0+penstock.sim"
_MAX_BODY = 64 * 2**20
_MAX_CHOICES = 128
_MAX_SALT = 128
_MAX_RANK_DIGITS = 6
_SALT_REFUSES = frozenset("@/\\\0")
_OPEN_PATHS = frozenset({"/health", "/ping", "/version", "/metrics", "/load", "/openapi.json"})
_OPENAPI = msgspec.json.encode(msgspec.json.schema(ChatBody))
"""The schema of requests, by which clients see that the engine takes `stream_interval`."""
_MARK = (b"x-penstock-simulated", b"1")
_JSON = (b"content-type", b"application/json")
_DISCONNECTED = -1
T = TypeVar("T")


class HttpError(Exception):
    """An error response with vLLM's error object."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = msgspec.json.encode(
            {"error": {"message": message, "type": kind, "param": None, "code": status}}
        )


class ClientDisconnected(Exception):
    """The client closed its connection."""


class SimServer:
    """The ASGI application."""

    def __init__(
        self,
        loop: EngineLoop,
        *,
        model: str,
        api_key: str,
        clock: Clock,
        log: RequestLog | None = None,
        version: str = VERSION,
        adapters: Adapters | None = None,
    ) -> None:
        self._version = version
        self._loop = loop
        self._log = log or RequestLog(None)
        self._model = model
        self._adapters = adapters or Adapters(0)
        self._key = api_key.encode()
        self._clock = clock
        self._max_len = loop.model.config.capacity.max_model_len
        self.metrics = SimMetrics(loop, model)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the server's startup and shutdown."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            await self._route(scope, receive, send)
        except HttpError as error:
            await _reply(send, error.body, error.status)
        except ClientDisconnected:
            return

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._loop.start()
            else:
                await self._loop.close()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if path not in _OPEN_PATHS:
            self._authorize(scope)
        match method, path:
            case "POST", "/v1/chat/completions":
                await self._generate(scope, receive, send, ChatBody)
            case "POST", "/v1/completions":
                await self._generate(scope, receive, send, CompletionBody)
            case "POST", "/v1/embeddings":
                await _reply(send, self._embed(await _read(receive)))
            case "GET", "/v1/models":
                await _reply(send, self._models())
            case "GET", "/metrics":
                await _reply(
                    send, self.metrics.render(), content_type=b"text/plain; version=1.0.0; charset=utf-8"
                )
            case "GET", "/health":
                await _reply(send, b"", content_type=b"")
            case "GET" | "POST", "/ping":
                await _reply(send, b"", content_type=b"")
            case "GET", "/version":
                await _reply(send, msgspec.json.encode({"version": self._version, "simulated": True}))
            case "GET", "/openapi.json":
                await _reply(send, _OPENAPI)
            case "GET", "/load":
                busy = self._loop.model.running + self._loop.model.waiting
                await _reply(send, msgspec.json.encode({"server_load": busy}))
            case "POST", "/tokenize":
                await _reply(send, self._tokenize(await _read(receive)))
            case _:
                await self._control(scope, receive, send)

    async def _control(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle sleep mode (vLLM's development endpoints) and failpoints."""
        match scope["method"], scope["path"]:
            case "POST", "/sleep":
                asked = parse_qs(scope.get("query_string", b"").decode("latin-1"))
                level = int(asked.get("level", ["1"])[0])
                await self._loop.fall_asleep(level, wait=asked.get("mode") == ["wait"])
                await _reply(send, msgspec.json.encode({"status": "sleeping", "level": level}))
            case "POST", "/wake_up":
                tags = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("tags", [])
                await self._reply_when_done(send, self._loop.wake(tags))
            case "POST", "/collective_rpc":
                method = _parse(await _read(receive), RpcBody).method
                if method != "reload_weights":
                    raise HttpError(500, "InternalServerError", f"no worker method {method!r} is simulated")
                await self._reply_when_done(send, self._loop.reload_weights())
            case "POST", "/v1/unload_lora_adapter":
                name = _parse(await _read(receive), UnloadBody).lora_name
                if not self._adapters.forget(name):
                    raise HttpError(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
                await _reply(send, f"Success: LoRA adapter '{name}' removed successfully.".encode())
            case "GET", "/is_sleeping":
                await _reply(send, msgspec.json.encode({"is_sleeping": self._loop.sleep.asleep}))
            case "POST", "/failpoints":
                self._loop.set_failpoints(_parse(await _read(receive), Failpoints))
                await _reply(send, msgspec.json.encode(self._loop.failpoints))
            case "GET", "/failpoints":
                await _reply(send, msgspec.json.encode(self._loop.failpoints))
            case method, path:
                raise HttpError(404, "NotFoundError", f"no such endpoint: {method} {path}")

    async def _reply_when_done(self, send: Send, work: Awaitable[None]) -> None:
        """Answer a development endpoint once its work is done, with 500 when it fails."""
        try:
            await work
        except RuntimeError as error:
            raise HttpError(500, "InternalServerError", str(error)) from None
        await _reply(
            send, msgspec.json.encode({"status": "sleeping" if self._loop.sleep.asleep else "awake"})
        )

    def _authorize(self, scope: Scope) -> None:
        if not self._key:
            return
        given = _header(scope, b"authorization")
        if not hmac.compare_digest(given.encode(), b"Bearer " + self._key):
            raise HttpError(401, "Unauthorized", "Unauthorized")

    def _models(self) -> bytes:
        entry = {
            "id": self._model,
            "object": "model",
            "created": int(self._clock.now().timestamp()),
            "owned_by": FINGERPRINT,
            "root": self._model,
            "parent": None,
            "max_model_len": self._max_len,
            "permission": [],
        }
        return msgspec.json.encode({"object": "list", "data": [entry]})

    def _tokenize(self, raw: bytes) -> bytes:
        content = _parse(raw, TokenizeBody).content()
        ids = text.token_ids(content)
        return msgspec.json.encode(
            {"count": len(ids), "max_model_len": self._max_len, "tokens": ids, "token_strs": None}
        )

    def _embed(self, raw: bytes) -> bytes:
        """Answer vectors at once: the time of embeddings is not simulated, but the tokens are counted."""
        points = self._loop.failpoints
        if points.error_next > 0:
            points.error_next -= 1
            raise HttpError(500, "InternalServerError", "failpoint: error_next")
        body = _parse(raw, EmbeddingsBody)
        if body.model not in ("", self._model):
            raise HttpError(404, "NotFoundError", f"The model `{body.model}` does not exist.")
        contents = body.contents()
        longest = max(map(text.count, contents), default=0)
        if longest > self._max_len:
            message = (
                f"This model's maximum context length is {self._max_len} tokens. However, your prompt contains "
                f"{longest} input tokens."
            )
            raise HttpError(400, "BadRequestError", message)
        tokens = sum(map(text.count, contents))
        self._loop.model.count_embedded(tokens)
        return embeddings_body(self._model, contents, body.encoding_format == "base64", body.dimensions)

    async def _generate(
        self, scope: Scope, receive: Receive, send: Send, shape: type[ChatBody] | type[CompletionBody]
    ) -> None:
        started = time.perf_counter()
        raw = await _read(receive)
        points = self._loop.failpoints
        if points.drop_next > 0:
            points.drop_next -= 1
            scope["penstock.transport"].abort()
            raise ClientDisconnected
        if points.error_next > 0:
            points.error_next -= 1
            raise HttpError(500, "InternalServerError", "failpoint: error_next")
        body = _parse(raw, shape)
        adapter = await self._adapter(body)
        sequences = self._sequences(body, self._rank(scope), adapter)
        await self._loop.receive()
        try:
            collector = self._loop.submit(sequences)
        except ValueError as error:
            raise HttpError(400, "BadRequestError", str(error)) from None
        answer = self._answer(body, sequences)
        request_id = _header(scope, b"x-request-id")
        self._log.begin(request_id)
        watcher = asyncio.create_task(_abort_on_disconnect(receive, collector, self._loop))
        try:
            await self._relay(send, collector, answer, bool(body.stream), started)
        finally:
            watcher.cancel()
            self._loop.abort(collector)
            self._log.end(request_id, sum(sequence.generated for sequence in sequences))

    async def _adapter(self, body: ChatBody | CompletionBody) -> int:
        """Return what the adapter that a request names adds to its seed; 0 for the model itself."""
        if body.model in ("", self._model):
            return 0
        try:
            seed = await self._adapters.seed_of(body.model)
        except ValueError as error:
            raise HttpError(400, "BadRequestError", str(error)) from None
        except (RuntimeError, OSError, TimeoutError) as error:
            raise HttpError(500, "InternalServerError", str(error)) from None
        if seed is None:
            raise HttpError(404, "NotFoundError", f"The model `{body.model}` does not exist.")
        return seed

    def _answer(self, body: ChatBody | CompletionBody, sequences: list[Sequence]) -> Answer:
        chat = isinstance(body, ChatBody)
        options = body.stream_options
        usage = not self._loop.failpoints.no_usage
        asked = (options is not None and options.include_usage) if body.stream else True
        return Answer(
            chat=chat,
            request_id=f"{'chatcmpl' if chat else 'cmpl'}-{uuid4().hex}",
            created=int(self._clock.now().timestamp()),
            model=body.model or self._model,
            prompt_tokens=sum(sequence.prompt_tokens for sequence in sequences if sequence.counts_prompt),
            choices=[
                Choice(sequence, body.stops(), interval=(body.stream_interval or 1) if body.stream else 1)
                for sequence in sequences
            ],
            usage=usage and asked,
            continuous=usage and asked and options is not None and options.continuous_usage_stats,
            prompt_ids=[text.token_ids(bytes(each.content)) for each in sequences]
            if body.return_token_ids
            else None,
        )

    def _rank(self, scope: Scope) -> int | None:
        """Return the rank that a request asks for; None = it leaves the choice to the engine, or asks for no number."""
        asked = _header(scope, RANK_HEADER.lower().encode())
        if not (asked.isdecimal() and len(asked) <= _MAX_RANK_DIGITS):
            return None
        ranks = len(self._loop.model.ranks)
        if int(asked) >= ranks:
            message = f"data_parallel_rank {int(asked)} is out of range [0, {ranks})."
            raise HttpError(400, "BadRequestError", message)
        return int(asked)

    def _sequences(self, body: ChatBody | CompletionBody, rank: int | None, adapter: int) -> list[Sequence]:
        prompts = body.prompts()
        choices = body.n or 1
        if not 1 <= choices <= _MAX_CHOICES or not prompts:
            raise HttpError(400, "BadRequestError", f"n is {choices}, must be between 1 and {_MAX_CHOICES}")
        salt = body.cache_salt or ""
        if len(salt) > _MAX_SALT or not _SALT_REFUSES.isdisjoint(salt):
            message = (
                f"'cache_salt' must be at most {_MAX_SALT} characters, without '@', '/', '\\\\' and NUL."
            )
            raise HttpError(400, "BadRequestError", message)
        wanted = body.max_completion_tokens or body.max_tokens
        if body.stream_interval is not None and body.stream_interval < 1:
            raise HttpError(
                400, "BadRequestError", f"stream_interval must be at least 1, got {body.stream_interval}."
            )
        if wanted is not None and wanted < 1:
            raise HttpError(400, "BadRequestError", f"max_tokens must be at least 1, got {wanted}.")
        sequences: list[Sequence] = []
        for content in prompts:
            room = self._max_len - text.count(content)
            if room < 1 or (wanted or 0) > room:
                raise HttpError(
                    400,
                    "BadRequestError",
                    f"This model's maximum context length is {self._max_len} tokens. However, you requested "
                    f"{wanted or 0} output tokens and your prompt contains {text.count(content)} input tokens.",
                )
            sequences += [
                new_sequence(
                    content,
                    max_tokens=wanted or room,
                    seed=(body.seed or 0) + adapter,
                    choice=choice,
                    stops_by_itself=wanted is None and not body.ignore_eos,
                    salt=f"{salt}@{body.model}" if adapter else salt,
                    priority=body.priority,
                    rank=rank,
                )
                for choice in range(choices)
            ]
        return sequences

    async def _relay(
        self, send: Send, collector: RequestOutputCollector, answer: Answer, stream: bool, started: float
    ) -> None:
        """Convert tokens to the answer as they are generated."""
        if stream:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), _MARK]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        last = started
        while not answer.finished:
            news = await collector.get()
            if any(choice == _DISCONNECTED for choice, _ in news):
                raise ClientDisconnected
            events = answer.feed(self._loop.model, news)
            now = time.perf_counter()
            (self.metrics.ttft if last == started else self.metrics.itl).observe(now - last)
            last = now
            if stream and (events or answer.finished):
                ending = answer.closing() if answer.finished else b""
                await send(
                    {"type": "http.response.body", "body": events + ending, "more_body": not answer.finished}
                )
        self.metrics.e2e.observe(time.perf_counter() - started)
        if not stream:
            await _reply(send, answer.full_body())


def _header(scope: Scope, wanted: bytes) -> str:
    """Return the first header of that name in lower case; "" = there is none."""
    return next((str(value, "latin-1") for name, value in scope["headers"] if name == wanted), "")


async def _abort_on_disconnect(receive: Receive, collector: RequestOutputCollector, loop: EngineLoop) -> None:
    """Abort the request when its client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    loop.abort(collector)
    collector.put(_DISCONNECTED, b"")


async def _read(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > _MAX_BODY:
            raise HttpError(413, "BadRequestError", f"the body is larger than {_MAX_BODY} bytes")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _parse(raw: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, "BadRequestError", str(error)) from None


async def _reply(send: Send, body: bytes, status: int = 200, *, content_type: bytes = _JSON[1]) -> None:
    headers = [(b"content-length", str(len(body)).encode()), _MARK]
    if content_type:
        headers.append((b"content-type", content_type))
    with suppress(ConnectionError):
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
