"""ASGI middleware inside an engine: what the agent alone may ask for, and no request while the engine sleeps.

vLLM asks for its API key under /v1 alone. With sleep mode it opens development endpoints as well (/sleep,
/collective_rpc, which calls any method of a worker, and others), to whoever reaches its port. This guard lets requests
without the agent's key reach the paths of `OPEN_PATHS` alone. A request that comes too late for an engine that sleeps
would wait in it without an end; it is answered with 503, so that another replica is tried.

The engine imports this module in its own environment (`--middleware workers.engine_guard.EngineGuard`), so it imports
the standard library alone.
"""

import hmac
import json
import logging
import os
import secrets
import traceback
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

KEY_VARIABLE = "ENGINE_AGENT_KEY"
"""The environment variable from which the guard takes the agent's key; without it no key is right."""
STRICT_VARIABLE = "ENGINE_STRICT_KEY"
"""The environment variable with the key of API processes: then requests need it, on the paths of `_WORK` alone, unless
they have the agent's."""
KEY_HEADER = "x-penstock-agent"
OPEN_PATHS = frozenset(
    {
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/tokenize", "/detokenize",
        "/health", "/ping", "/version", "/metrics", "/load", "/openapi.json",
    }
)  # fmt: skip
"""Paths that need no agent's key. vLLM still asks for its API key under /v1."""
_WORK = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
"""Paths whose requests an engine that sleeps would keep waiting."""


def agent_key(data_dir: Path) -> str:
    """The key of the agent on this data directory, made when it is first asked for.

    It is kept in a file, because engines outlive their agent, and it never leaves the host.
    """
    path = data_dir / "agent-key"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        data_dir.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(f"{secrets.token_hex(32)}\n")
        return path.read_text().strip()


class WithoutWords(logging.Filter):
    """Leaves the texts of exceptions out of the engine's log, which may quote what a customer sent.

    vLLM logs the exception of a request that it refuses, such as the reference of a JSON schema that leads nowhere.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the exception of a record by its class and the lines of code; keep the record."""
        if record.exc_info and record.exc_info[0] is not None:
            frames = traceback.extract_tb(record.exc_info[2])
            lines = [f'  File "{each.filename}", line {each.lineno}, in {each.name}' for each in frames]
            record.exc_text = "\n".join([*lines, f"{record.exc_info[0].__name__} (text left out)"])
            record.exc_info = None
        return True


class EngineGuard:
    """Wraps the engine's application; one per server process."""

    def __init__(self, app: App, *, open_paths: Collection[str] = ()) -> None:
        """`open_paths`: further paths that need no agent's key."""
        self._app = app
        self._open = OPEN_PATHS | set(open_paths)
        self._key = os.environ.get(KEY_VARIABLE, "").encode()
        strict = os.environ.get(STRICT_VARIABLE, "")
        self._strict = f"Bearer {strict}".encode() if strict else b""
        self._asleep = False
        for target in (logging.getLogger("uvicorn.error"), *logging.getLogger("vllm").handlers):
            target.addFilter(WithoutWords())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 403 or 503."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif self._is_agent(scope):
            await self._as_agent(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif self._strict and not hmac.compare_digest(_header(scope, b"authorization"), self._strict):
            await _answer(send, 401, "Unauthorized", "this engine answers nothing without a key")
        elif scope["path"] not in (_WORK if self._strict else self._open):
            await _answer(
                send, 403, "Forbidden", f"{scope['path'][:200]} is reserved to the agent of this host"
            )
        elif self._asleep and scope["path"] in _WORK:
            await _answer(
                send, 503, "ServiceUnavailable", "this engine sleeps; send the request to another replica"
            )
        else:
            await self._app(scope, receive, send)

    def _is_agent(self, scope: Scope) -> bool:
        return bool(self._key) and hmac.compare_digest(_header(scope, KEY_HEADER.encode()), self._key)

    async def _as_agent(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the agent's request on, and note when the engine falls asleep and when it is awake again."""
        path, statuses = scope["path"], [0]

        async def noting(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        before = self._asleep
        if path == "/sleep":
            self._asleep = True
        try:
            await self._app(scope, receive, noting)
        finally:
            done = statuses[-1] == 200
            if path == "/sleep" and not done:
                self._asleep = before
            tags = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("tags")
            if path == "/wake_up" and done and (tags is None or "kv_cache" in tags):
                self._asleep = False


def _header(scope: Scope, name: bytes) -> bytes:
    found: bytes = next((value for each, value in scope["headers"] if each == name), b"")
    return found


async def _answer(send: Send, status: int, kind: str, message: str) -> None:
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
