"""A plain OpenAI-compatible engine in a thread: no /health, no /metrics and no running usage unless asked for."""

import asyncio
import json
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from aiohttp import web

WORDS = ("The", " water", " turns", " the", " wheel", ".")


class OpenAIEngine:
    """Serves `models` (name -> further members of its list entry) on a free loopback port while the context lasts.

    It answers WORDS, one token each, and counts a prompt's words as its tokens. `requests` are the bodies that it got,
    `keys` the Authorization headers. No answer begins before `together` requests run at once.
    """

    def __init__(
        self, models: Mapping[str, Mapping[str, Any]], *, key: str = "", usage: bool = True, together: int = 1
    ) -> None:
        self.models = dict(models)
        self.key = key
        self.usage = usage
        self.together = together
        self._running = self._most = 0
        self._change = asyncio.Condition()
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.url = ""
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Start to serve."""
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop serving."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_get("/v1/models", self._list)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/embeddings", self._embed)
        runner = web.AppRunner(app)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    def _refusal(self, request: web.Request) -> web.Response | None:
        self.keys.add(request.headers.get("Authorization"))
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "invalid key"}, status=401)
        return None

    async def _list(self, request: web.Request) -> web.StreamResponse:
        entries = [{"id": name, "object": "model", **rest} for name, rest in self.models.items()]
        return self._refusal(request) or web.json_response({"object": "list", "data": entries})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refusal(request):
            return refusal
        body = await request.json()
        self.requests.append(body)
        if body["model"] not in self.models:
            return web.json_response({"detail": "model not found"}, status=404)
        async with self._change:
            self._running += 1
            self._most = max(self._most, self._running)
            self._change.notify_all()
            await self._change.wait_for(lambda: self._most >= self.together)
        try:
            return await self._answer(request, body)
        finally:
            self._running -= 1

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        """A vector of each text: how many words and characters it has."""
        if refusal := self._refusal(request):
            return refusal
        body = await request.json()
        self.requests.append(body)
        sizes = [(len(text.split()), len(text)) for text in body["input"]]
        data = [
            {"object": "embedding", "index": index, "embedding": [float(number) for number in size]}
            for index, size in enumerate(sizes)
        ]
        words = sum(count for count, _ in sizes)
        usage = {"prompt_tokens": words, "total_tokens": words}
        return web.json_response({"object": "list", "data": data, "model": body["model"], "usage": usage})

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or len(WORDS)
        words = WORDS[:limit]
        prompt = sum(len(str(message.get("content", "")).split()) for message in body["messages"])
        usage = {
            "prompt_tokens": prompt, "completion_tokens": len(words), "total_tokens": prompt + len(words),
        }  # fmt: skip
        reason = "stop" if len(words) == len(WORDS) else "length"
        head = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            message = {"role": "assistant", "content": "".join(words)}
            choices = [{"index": 0, "message": message, "finish_reason": reason}]
            return web.json_response(
                {**head, "object": "chat.completion", "choices": choices, "usage": usage}
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        deltas = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
        for delta in deltas:
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            await _send(response, {**head, "object": "chat.completion.chunk", "choices": [choice]})
        last = {"index": 0, "delta": {}, "finish_reason": reason}
        await _send(response, {**head, "object": "chat.completion.chunk", "choices": [last]})
        if self.usage and body.get("stream_options", {}).get("include_usage"):
            await _send(response, {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response


async def _send(response: web.StreamResponse, event: Mapping[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
