"""Connections to Redis: fast errors when it is unavailable, no error on a quiet subscription."""

import asyncio

import pytest
from redis.exceptions import RedisError

from core import redis as core_redis
from core.child import free_port


async def test_it_returns_bytes_and_survives_a_dropped_connection(redis_url: str) -> None:
    client = core_redis.connect(redis_url)
    try:
        await client.set("answer", 42)
        await client.connection_pool.disconnect()
        assert await client.get("answer") == b"42"
    finally:
        await client.aclose()


async def test_an_unavailable_server_is_an_error_at_once() -> None:
    client = core_redis.connect(f"redis://127.0.0.1:{free_port()}/0")
    try:
        async with asyncio.timeout(60):
            with pytest.raises(RedisError):
                await client.ping()
    finally:
        await client.aclose()


async def test_a_quiet_subscription_is_no_error(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_redis, "_TIMEOUT_S", 1.0)
    client, other = core_redis.connect(redis_url), core_redis.connect(redis_url)

    async def speak_later() -> None:
        await asyncio.sleep(3.0)  # a silence of several timeouts is what this tests
        await other.publish("channel", "hello")

    try:
        async with client.pubsub(ignore_subscribe_messages=True) as subscription:
            await subscription.subscribe("channel")
            speaking = asyncio.create_task(speak_later())
            async with asyncio.timeout(60):
                message = await anext(aiter(subscription.listen()))
            await speaking
        assert message["data"] == b"hello"
    finally:
        await client.aclose()
        await other.aclose()
