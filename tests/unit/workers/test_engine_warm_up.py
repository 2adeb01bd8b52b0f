"""The warm-up of an engine: what customers use is used once before, and no feature holds up a replica."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import msgspec
import pytest

from core.errors import EngineFailed
from workers import engine_api
from workers.engine_api import EngineApi


class Answer:
    """An answer of the engine."""

    def __init__(self, status: int) -> None:
        self.status = status

    async def read(self) -> bytes:
        return b"{}"


class Session:
    """An engine that answers each request with the status that `status_of` gives; None = never."""

    def __init__(self, status_of: Callable[[dict[str, Any]], int | None]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._status_of = status_of

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, data: bytes, headers: dict[str, str], **_: object
    ) -> AsyncIterator[Answer]:
        body = msgspec.json.decode(data)
        self.bodies.append(body)
        self.headers.append(headers)
        status = self._status_of(body)
        if status is None:
            await asyncio.Event().wait()
        yield Answer(status or 0)


async def warm_up(status_of: Callable[[dict[str, Any]], int | None]) -> list[dict[str, Any]]:
    session = Session(status_of)
    await EngineApi(cast(aiohttp.ClientSession, session), "http://engine", "").warm_up("m", 2048)
    return session.bodies


async def test_log_probabilities_and_structured_answers_are_used_once() -> None:
    bodies = await warm_up(lambda _: 200)
    assert any(body.get("prompt") for body in bodies)
    assert any(body.get("messages") and not body.get("logprobs") for body in bodies)
    assert any(body.get("logprobs") is True and body["top_logprobs"] for body in bodies)
    assert any("response_format" in body for body in bodies)


async def test_an_engine_without_a_feature_is_ready_all_the_same() -> None:
    bodies = await warm_up(lambda body: 400 if body.get("logprobs") else 200)
    assert "response_format" in bodies[-1]


async def test_an_engine_that_is_slow_with_a_feature_is_ready_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_api, "_FEATURES_WARMUP_S", 0.05)
    await asyncio.wait_for(warm_up(lambda body: None if body.get("logprobs") else 200), 30)


async def test_an_engine_that_cannot_chat_is_not_ready() -> None:
    with pytest.raises(EngineFailed):
        await warm_up(lambda body: 500 if "messages" in body else 200)


async def test_every_rank_gets_all_requests() -> None:
    """A rank is a process of its own, which compiles for itself."""
    session = Session(lambda _: 200)
    api = EngineApi(cast(aiohttp.ClientSession, session), "http://engine", "")
    await api.warm_up("m", 2048, ranks=3)
    by_rank: dict[str, list[str]] = {}
    for headers, body in zip(session.headers, session.bodies, strict=True):
        by_rank.setdefault(headers["X-data-parallel-rank"], []).append(repr(body))
    assert sorted(by_rank) == ["0", "1", "2"]
    assert by_rank["0"] == by_rank["1"] == by_rank["2"]

    whole = Session(lambda _: 200)
    await EngineApi(cast(aiohttp.ClientSession, whole), "http://engine", "").warm_up("m", 2048)
    assert [repr(body) for body in whole.bodies] == by_rank["0"]
    assert not any("X-data-parallel-rank" in headers for headers in whole.headers)


async def test_an_engine_of_embeddings_is_asked_for_nothing_else() -> None:
    session = Session(lambda body: 200 if "input" in body else 404)
    await EngineApi(cast(aiohttp.ClientSession, session), "http://engine", "").warm_up("m", 2048, embeds=True)
    assert len(session.bodies) == 2
