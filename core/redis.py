"""Connections to Redis with timeouts, health checks and one retry."""

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 2.0
_MAX_CONNECTIONS = 64


def connect(redis_url: str) -> Redis:
    """A client that returns bytes and connects at the first command. Close it with `aclose()`.

    Commands raise redis.RedisError within seconds when the server is unavailable.
    """
    return Redis.from_url(
        redis_url,
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_CONNECT_TIMEOUT_S,
        health_check_interval=30,
        max_connections=_MAX_CONNECTIONS,
        retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), 1),
    )
