"""The rate limiter with a real Redis: exactness across processes, refunds, epochs, and operation without Redis."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from redis.asyncio import Redis

from core.clock import SystemClock
from core.embedded import EmbeddedRedis
from core.errors import RateLimited, Unavailable
from core.ids import uuid7
from tenants.principal import NO_LIMITS, Limits, Principal
from tenants.rate_scopes import unpack_levels
from tenants.rates import RateLimiter
from tests.support.waiting import until


def principal(key: Limits = NO_LIMITS, project: Limits = NO_LIMITS, tenant: Limits = NO_LIMITS) -> Principal:
    return Principal(
        key_id=uuid7(),
        project_id=uuid7(),
        tenant_id=uuid7(),
        tenant="acme",
        last4="abcd",
        kind="live",
        tier="standard",
        key_limits=key,
        project_limits=project,
        tenant_limits=tenant,
        allowed_models=None,
        cache_salt="",
    )


class Usage:
    """Stands for PostgreSQL's tokens of today."""

    def __init__(self) -> None:
        self.tokens: dict[UUID, int] = {}
        self.asked: list[datetime] = []
        self.broken = False

    async def __call__(self, tenant_id: UUID, day: datetime) -> dict[UUID, int]:
        self.asked.append(day)
        await asyncio.sleep(0)
        if self.broken:
            raise OSError("PostgreSQL is away")
        return dict(self.tokens)


@asynccontextmanager
async def limiter(url: str, usage: Usage | None = None, cap: int = 20) -> AsyncIterator[RateLimiter]:
    redis = Redis.from_url(url)
    made = RateLimiter(redis, SystemClock(), usage or Usage(), cap)
    await made.start()
    try:
        yield made
    finally:
        await made.close()
        await redis.aclose()


def rid() -> str:
    return str(uuid7())


async def outcome(rates: RateLimiter, who: Principal, tokens: tuple[int, int] = (10, 10)) -> str:
    try:
        await rates.acquire(rid(), who, *tokens)
    except RateLimited as error:
        return f"{error.details['scope']}:{error.details['kind']}"
    return "granted"


async def test_two_limiters_grant_exactly_the_limit(redis_url: str) -> None:
    who = principal(key=Limits(requests_per_min=10))
    async with limiter(redis_url) as one, limiter(redis_url) as two:
        calls = [outcome((one, two)[n % 2], who) for n in range(200)]
        began = monotonic()
        counts = Counter(await asyncio.gather(*calls))
        drained = int((monotonic() - began) / 6)  # one more each six seconds, so usually none
    assert 10 <= counts["granted"] <= 10 + drained
    assert counts["granted"] + counts["key:requests_per_min"] == 200


async def test_concurrency_is_exact_and_returned_on_settle(redis_url: str) -> None:
    who = principal(tenant=Limits(concurrency=7))
    async with limiter(redis_url) as one, limiter(redis_url) as two:
        answers = await asyncio.gather(
            *((one, two)[n % 2].acquire(rid(), who, 1, 1) for n in range(50)), return_exceptions=True
        )
        grants = [(n, answer) for n, answer in enumerate(answers) if not isinstance(answer, BaseException)]
        assert len(grants) == 7
        index, grant = grants[0]
        (one, two)[index % 2].settle(grant, 1, 1)
        await until(lambda: _granted((one, two)[index % 2], who))
        assert await outcome(one, who) == "tenant:concurrency"


async def _granted(rates: RateLimiter, who: Principal) -> bool:
    return await outcome(rates, who) == "granted"


async def test_a_refused_request_counts_nothing(redis_url: str) -> None:
    who = principal(key=Limits(requests_per_min=5), tenant=Limits(concurrency=1))
    async with limiter(redis_url) as rates:
        grant = await rates.acquire(rid(), who, 10, 10)
        for _ in range(20):
            assert await outcome(rates, who) == "tenant:concurrency"
        rates.settle(grant, 10, 10)
        second = await rates.acquire(rid(), who, 10, 10)
    remaining = dict(second.headers)[b"x-ratelimit-remaining-requests"]
    assert remaining == b"3"


async def test_refund_returns_the_request_too(redis_url: str) -> None:
    who = principal(project=Limits(requests_per_min=1, input_tokens_per_min=100))
    async with limiter(redis_url) as rates:
        for _ in range(5):
            rates.refund(await rates.acquire(rid(), who, 80, 10))
        grant = await rates.acquire(rid(), who, 80, 10)
        rates.settle(grant, 80, 10)
        assert await outcome(rates, who) == "project:requests_per_min"


async def test_settling_corrects_the_estimate_and_carries_debt(redis_url: str) -> None:
    who = principal(key=Limits(input_tokens_per_min=1000, output_tokens_per_min=1000))
    async with limiter(redis_url) as rates:
        grant = await rates.acquire(rid(), who, 500, 900)
        rates.settle(grant, 500, 100)
        assert await outcome(rates, who, (400, 800)) == "granted"
        debtor = principal(key=Limits(output_tokens_per_min=100))
        grant = await rates.acquire(rid(), debtor, 1, 50)
        rates.settle(grant, 1, 700)
        with pytest.raises(RateLimited) as caught:
            await rates.acquire(rid(), debtor, 1, 1)
    assert caught.value.details == {"scope": "key", "kind": "output_tokens_per_min", "limit": 100}
    assert 300 < (caught.value.retry_after_s or 0) <= 361


async def test_a_request_larger_than_the_minute_passes_only_when_the_bucket_is_full(redis_url: str) -> None:
    who = principal(key=Limits(input_tokens_per_min=1000))
    async with limiter(redis_url) as rates:
        grant = await rates.acquire(rid(), who, 3000, 1)
        rates.settle(grant, 3000, 1)
        assert await outcome(rates, who, (1, 1)) == "key:input_tokens_per_min"


async def test_settling_twice_counts_once(redis_url: str, redis_client: Redis) -> None:
    who = principal(tenant=Limits(tokens_per_day=10_000))
    async with limiter(redis_url) as rates:
        grant = await rates.acquire(rid(), who, 100, 100)
        rates.settle(grant, 50, 50)
        rates.settle(grant, 50, 50)
    assert await _day(redis_client, who, who.tenant_id) == 100


async def _day(redis: Redis, who: Principal, scope_id: UUID) -> int:
    return int(await redis.hget(f"penstock:rate:{{{who.tenant_id}}}:day", str(scope_id)) or -1)


async def test_tokens_per_day_start_from_postgresql(redis_url: str, redis_client: Redis) -> None:
    who = principal(key=Limits(tokens_per_day=500), tenant=Limits(tokens_per_day=1000))
    usage = Usage()
    usage.tokens = {who.tenant_id: 950, who.key_id: 10}
    async with limiter(redis_url, usage) as rates:
        answers = await asyncio.gather(*(outcome(rates, who, (10, 10)) for _ in range(8)))
        assert Counter(answers) == {"granted": 2, "tenant:tokens_per_day": 6}
        assert len(usage.asked) == 1
        assert usage.asked[0].hour == usage.asked[0].minute == 0
    assert await _day(redis_client, who, who.tenant_id) == 990
    assert await _day(redis_client, who, who.key_id) == 50


@pytest.mark.promise(9)
async def test_a_flushed_redis_is_seeded_again_and_old_grants_are_no_ops(
    redis_url: str, redis_client: Redis
) -> None:
    who = principal(tenant=Limits(tokens_per_day=1000, requests_per_min=100))
    usage = Usage()
    usage.tokens = {who.tenant_id: 100}
    async with limiter(redis_url, usage) as rates:
        old = await rates.acquire(rid(), who, 200, 200)
        await redis_client.flushall()
        usage.tokens = {who.tenant_id: 600}
        assert await outcome(rates, who, (100, 100)) == "granted"
        rates.settle(old, 0, 0)
        assert await outcome(rates, who, (300, 0)) == "tenant:tokens_per_day"
        assert await outcome(rates, who, (100, 100)) == "granted"
    assert len(usage.asked) == 2
    assert await _day(redis_client, who, who.tenant_id) == 1000


async def test_without_postgresql_a_daily_limit_admits_nothing(redis_url: str) -> None:
    usage = Usage()
    usage.broken = True
    async with limiter(redis_url, usage) as rates:
        with pytest.raises(Unavailable):
            await rates.acquire(rid(), principal(key=Limits(tokens_per_day=1)), 1, 1)
        assert await outcome(rates, principal(key=Limits(requests_per_min=1))) == "granted"


async def test_renewal_restores_leases_lost_with_redis(redis_url: str, redis_client: Redis) -> None:
    who = principal(key=Limits(concurrency=1))
    async with limiter(redis_url) as rates:
        await rates.acquire(rid(), who, 1, 1)
        await redis_client.flushall()
        rates.renew()
        assert await outcome(rates, who) == "key:concurrency"


async def test_a_refused_key_is_refused_locally_until_its_limits_change(
    redis_url: str, redis_client: Redis
) -> None:
    who = principal(key=Limits(requests_per_min=1))
    async with limiter(redis_url) as rates:
        assert await outcome(rates, who) == "granted"
        assert await outcome(rates, who) == "key:requests_per_min"
        before = (await redis_client.info("commandstats"))["cmdstat_evalsha"]["calls"]
        for _ in range(50):
            assert await outcome(rates, who) == "key:requests_per_min"
        assert (await redis_client.info("commandstats"))["cmdstat_evalsha"]["calls"] == before
        raised = Principal(**{f: getattr(who, f) for f in who.__struct_fields__} | {"key_limits": Limits(5)})
        assert not _checked(rates, who)
        assert _checked(rates, raised)
        assert await outcome(rates, raised) == "granted"


async def test_invalid_requests_count_against_the_rate(redis_url: str) -> None:
    who = principal(key=Limits(requests_per_min=10), tenant=Limits(requests_per_min=1000))
    async with limiter(redis_url) as rates:
        for _ in range(4):
            await rates.acquire(rid(), who, 1, 1)
        began = monotonic()
        parsed = 0
        for _ in range(100):
            if not _checked(rates, who):
                continue
            rates.charge_invalid(who)
            parsed += 1
            await until(lambda: _no_unconfirmed(rates), what="the count is confirmed")
        assert 6 <= parsed <= 6 + int((monotonic() - began) / 6)
        assert await outcome(rates, who) == "key:requests_per_min"
        assert await outcome(rates, principal(key=Limits(requests_per_min=1))) == "granted"
        raised = Principal(**{f: getattr(who, f) for f in who.__struct_fields__} | {"key_limits": Limits(50)})
        assert _checked(rates, raised)


async def test_processes_let_one_limit_each_through_in_a_round_trip_and_carry_the_debt(
    redis_url: str, redis_client: Redis
) -> None:
    who = principal(key=Limits(requests_per_min=10))
    async with limiter(redis_url) as one, limiter(redis_url) as two:
        parsed = 0
        for rates in (one, two):
            for _ in range(100):
                if _checked(rates, who):
                    rates.charge_invalid(who)
                    parsed += 1
        assert parsed == 20
        await until(lambda: _no_unconfirmed(one) and _no_unconfirmed(two))
        bucket = await redis_client.get(f"penstock:rate:{{{who.tenant_id}}}:buckets:{who.key_id}")
        level = unpack_levels(bucket)[1]
        assert 10 < level <= 20
        waits = []
        for rates in (one, two):
            with pytest.raises(RateLimited) as caught:
                rates.check(who)
            waits.append(caught.value.retry_after_s or 0)
        assert 6 < max(waits) <= 66, "one of them has seen the debt of both"


async def test_without_redis_invalid_requests_are_counted_here() -> None:
    who = principal(key=Limits(requests_per_min=3))
    async with limiter("redis://127.0.0.1:1/0") as rates:
        parsed = 0
        for _ in range(50):
            if _checked(rates, who):
                rates.charge_invalid(who)
                parsed += 1
            await asyncio.sleep(0)
        await until(lambda: _no_unconfirmed(rates))
        assert parsed == 3
        assert not _checked(rates, who)


def _checked(rates: RateLimiter, who: Principal) -> bool:
    try:
        rates.check(who)
    except RateLimited:
        return False
    return True


def _no_unconfirmed(rates: RateLimiter) -> bool:
    return all(bucket.unconfirmed == 0 for bucket in rates._invalid._buckets.values())


async def test_reservations_that_fill_a_day_block_only_until_they_settle(redis_url: str) -> None:
    """A day filled by estimates of running requests has room once they settle lower; cached refusals must not last."""
    who = principal(key=Limits(tokens_per_day=1000))
    async with limiter(redis_url) as rates:
        running = await rates.acquire(rid(), who, 600, 600)
        assert await outcome(rates, who) == "key:tokens_per_day"
        rates.settle(running, 20, 30)

        async def granted() -> bool:
            return await outcome(rates, who) == "granted"

        await until(granted, what="the day has room again")


@pytest.mark.promise(24)
async def test_a_cancelled_caller_returns_its_grant(redis_url: str) -> None:
    who = principal(key=Limits(concurrency=3, requests_per_min=1000))
    async with limiter(redis_url) as rates:
        for _ in range(20):
            task = asyncio.create_task(rates.acquire(rid(), who, 1, 1))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await until(lambda: _three_fit(rates, who))


async def _three_fit(rates: RateLimiter, who: Principal) -> bool:
    grants = await asyncio.gather(
        *(rates.acquire(rid(), who, 1, 1) for _ in range(3)), return_exceptions=True
    )
    for grant in grants:
        if not isinstance(grant, BaseException):
            rates.refund(grant)
    return not any(isinstance(grant, BaseException) for grant in grants)


@pytest.mark.promise(9)
async def test_without_redis_the_local_limit_applies() -> None:
    who = principal(tenant=Limits(requests_per_min=100_000))
    async with limiter("redis://127.0.0.1:1/0", cap=5) as rates:
        answers = Counter([await outcome(rates, who) for _ in range(50)])
        assert 5 <= answers["granted"] < 50
        assert answers["tenant:requests_per_min"] > 0
        assert await outcome(rates, principal()) == "granted"


async def test_without_limits_redis_is_not_called(redis_url: str, redis_client: Redis) -> None:
    async with limiter(redis_url) as rates:
        grant = await rates.acquire(rid(), principal(), 10**9, 10**9)
        rates.settle(grant, 1, 1)
    assert grant.headers == []
    assert await redis_client.dbsize() == 0


async def test_every_key_of_a_tenant_shares_its_hash_tag(redis_url: str, redis_client: Redis) -> None:
    limits = Limits(10, 1000, 1000, 10, 10_000)
    who = principal(limits, limits, limits)
    async with limiter(redis_url) as rates:
        await rates.acquire(rid(), who, 1, 1)
    names = [name.decode() async for name in redis_client.scan_iter()]
    assert len(names) == 8
    assert all(f"{{{who.tenant_id}}}" in name for name in names)
    assert all([await redis_client.ttl(name) > 0 for name in names])


async def test_a_frozen_redis_blocks_no_request_and_late_grants_are_returned(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that holds replies back and then passes all of them on."""
    monkeypatch.setattr("tenants.rate_pipeline.REPLY_TIMEOUT_S", 0.2)
    monkeypatch.setattr("tenants.rate_pipeline.RETRY_INTERVAL_S", 0.1)
    flowing = asyncio.Event()
    flowing.set()
    target = urlsplit(redis_url)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: bool) -> None:
        try:
            while data := await reader.read(65536):
                if gate:
                    await flowing.wait()
                writer.write(data)
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(
            relay(reader, far_writer, False), relay(far_reader, writer, True), return_exceptions=True
        )

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    who = principal(key=Limits(concurrency=1, requests_per_min=1000))
    async with limiter(f"redis://:{target.password}@127.0.0.1:{port}/0") as rates:
        rates.settle(await rates.acquire(rid(), who, 1, 1), 1, 1)
        flowing.clear()
        frozen = [await asyncio.wait_for(rates.acquire(rid(), who, 1, 1), 10) for _ in range(3)]
        assert [grant.headers for grant in frozen] == [[], [], []]
        flowing.set()
        await until(lambda: not rates._pipeline.unavailable)
        await until(lambda: _really_granted(rates, who))
        for grant in frozen:
            rates.settle(grant, 1, 1)
        assert await outcome(rates, who) == "key:concurrency"
    server.close()
    await server.wait_closed()


async def test_a_server_killed_frozen_and_started_again_blocks_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.rate_pipeline.REPLY_TIMEOUT_S", 0.2)
    monkeypatch.setattr("tenants.rate_pipeline.DEAD_AFTER_S", 0.2)
    monkeypatch.setattr("tenants.rate_pipeline.RETRY_INTERVAL_S", 0.1)
    who = principal(key=Limits(requests_per_min=100_000))
    server = EmbeddedRedis(tmp_path)
    url = await server.start()
    try:
        async with limiter(url) as rates:
            await until(lambda: _really_granted(rates, who))
            os.kill(server.pid, signal.SIGKILL)
            await until(lambda: not server.pid)
            calls = [asyncio.wait_for(rates.acquire(rid(), who, 1, 1), 10) for _ in range(10)]
            assert all(grant.headers == [] for grant in await asyncio.gather(*calls))
            await server.start()
            await until(lambda: _really_granted(rates, who))
            os.kill(server.pid, signal.SIGSTOP)
            try:
                grant = await asyncio.wait_for(rates.acquire(rid(), who, 1, 1), 10)
                assert grant.headers == []
                await until(lambda: rates._pipeline._protocol is None, what="the silent connection is closed")
            finally:
                os.kill(server.pid, signal.SIGCONT)
            await until(lambda: _really_granted(rates, who))
    finally:
        await server.stop()


async def _really_granted(rates: RateLimiter, who: Principal) -> bool:
    """Whether Redis grants a request; a grant of the local limiter does not count."""
    try:
        grant = await rates.acquire(rid(), who, 1, 1)
    except RateLimited:
        return False
    return bool(grant.headers)
