"""rates.lua compared with a model of its rules, on a manual clock."""

import struct
from dataclasses import dataclass, field
from fractions import Fraction
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from tenants.principal import NO_LIMITS, Limits
from tenants.rate_scopes import SOURCE, pack_scope

TIME = "call('TIME')"
HELD_CLOCK = "{string.match(call('GET', 'clock'), '(%d+) (%d+)')}"
SCRIPT = SOURCE.replace(TIME, HELD_CLOCK)
START_S = 1_767_225_600 - 100  # a hundred seconds before a UTC midnight
LEASE_S = 30
IDS = [str(UUID(int=index)) for index in range(3)]
KINDS = ("requests_per_min", "input_tokens_per_min", "output_tokens_per_min")


@dataclass
class Scope:
    limits: Limits
    levels: list[Fraction] = field(default_factory=lambda: [Fraction(0)] * 3)
    leases: dict[str, Fraction] = field(default_factory=dict)
    today: int | None = None


class Model:
    """The rules: reserve in all scopes when all conform, or in none."""

    def __init__(self, limits: tuple[Limits, ...]) -> None:
        self.scopes = [Scope(each) for each in limits]
        self.now = Fraction(START_S)
        self.epoch = 0
        self.known = False

    def advance(self, seconds: Fraction) -> None:
        day = self.now // 86_400
        self.now += seconds
        for scope in self.scopes:
            for index, kind in enumerate(KINDS):
                limit = getattr(scope.limits, kind) or 0
                scope.levels[index] = max(Fraction(0), scope.levels[index] - seconds * limit / 60)
            scope.leases = {name: end for name, end in scope.leases.items() if end > self.now}
            if self.now // 86_400 != day:
                scope.today = None

    def empty(self) -> None:
        self.scopes = [Scope(scope.limits) for scope in self.scopes]
        self.epoch += 1
        self.known = False

    def seed(self, tokens: int) -> None:
        self.known = True
        for scope in self.scopes:
            if scope.limits.tokens_per_day is not None and scope.today is None:
                scope.today = tokens

    def acquire(self, lease: str, tokens: tuple[int, int]) -> str:
        daily = [scope for scope in self.scopes if scope.limits.tokens_per_day is not None]
        if daily and (not self.known or any(scope.today is None for scope in daily)):
            return "seed"
        costs = (1, *tokens)
        for scope in self.scopes:
            for index, kind in enumerate(KINDS):
                limit = getattr(scope.limits, kind)
                if limit is not None and scope.levels[index] + min(costs[index], limit) > limit:
                    return "refused"
            if scope.limits.concurrency is not None and len(scope.leases) >= scope.limits.concurrency:
                return "refused"
            per_day = scope.limits.tokens_per_day
            if per_day is not None and scope.today + min(sum(tokens), per_day) > per_day:
                return "refused"
        self.known = True
        for scope in self.scopes:
            for index, kind in enumerate(KINDS):
                if getattr(scope.limits, kind) is not None:
                    scope.levels[index] += costs[index]
            if scope.limits.concurrency is not None:
                scope.leases[lease] = self.now + LEASE_S
            if scope.limits.tokens_per_day is not None:
                scope.today += sum(tokens)
        return "granted"

    def charge(self) -> None:
        for scope in self.scopes:
            if scope.limits.requests_per_min is not None:
                scope.levels[0] += 1

    def settle(self, lease: str, epoch: int, day: int, deltas: tuple[int, int, int], used: int) -> None:
        for scope in self.scopes:
            scope.leases.pop(lease, None)
            if epoch != self.epoch:
                continue
            for index, kind in enumerate(KINDS):
                if getattr(scope.limits, kind) is not None:
                    scope.levels[index] = max(Fraction(0), scope.levels[index] + deltas[index])
            if scope.limits.tokens_per_day is not None and scope.today is not None:
                scope.today += deltas[1] + deltas[2] if day == self.now // 86_400 else used


class Real:
    """The script on a real server."""

    def __init__(self, redis: Redis, limits: tuple[Limits, ...]) -> None:
        self.redis = redis
        self.script = redis.register_script(SCRIPT)
        self.passed = [index for index, each in enumerate(limits) if each != NO_LIMITS]
        self.keys = ["{t}:epoch", "{t}:day"]
        self.scopes = b""
        for index in self.passed:
            self.keys += [f"{{t}}:b{index}", f"{{t}}:l{index}"]
            self.scopes += pack_scope(index + 1, IDS[index], limits[index])

    def run(self, now: Fraction, *args: str | int | bytes) -> list[int | bytes]:
        self.redis.set("clock", f"{int(now)} {int((now % 1) * 1_000_000)}")
        return self.script(keys=self.keys, args=(self.scopes, *args))

    def empty(self) -> None:
        self.redis.delete(*self.keys)


limit = st.none() | st.integers(1, 12)
scopes = st.tuples(
    *[st.builds(Limits, limit, limit, limit, st.none() | st.integers(1, 3), st.none() | st.integers(1, 60))]
    * 3
)
tokens = st.tuples(st.integers(1, 15), st.integers(1, 15))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), tokens),
        st.tuples(st.just("settle"), tokens),
        st.tuples(st.just("refund"), tokens),
        st.tuples(st.just("charge"), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 90)),
        st.tuples(st.just("empty"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limits=scopes, steps=steps)
def test_the_script_follows_the_model(redis_url: str, limits: tuple[Limits, ...], steps) -> None:
    assert SCRIPT.count(TIME) == 0
    assert SOURCE.count(TIME) == 1
    with Redis.from_url(redis_url) as redis:
        real, model = Real(redis, limits), Model(limits)
        real.empty()
        held: list[tuple[str, int, bytes, int, tuple[int, int]]] = []
        for number, (step, value) in enumerate(steps):
            if step == "wait":
                model.advance(Fraction(value))
            elif step == "empty":
                model.empty()
                real.empty()
            elif step == "charge":
                model.charge()
                charged = [model.scopes[index] for index in real.passed]
                for scope, level in zip(charged, real.run(model.now, "charge")[1:], strict=True):
                    if scope.limits.requests_per_min is not None:
                        assert abs(int(level) - 1000 * scope.levels[0]) <= 1
            elif step == "acquire":
                _acquire(real, model, held, number, value)
            elif held:
                lease, epoch, key, day, estimate = held.pop(0)
                used = (0, 0) if step == "refund" else value
                deltas = (-1 if step == "refund" else 0, used[0] - estimate[0], used[1] - estimate[1])
                model.settle(lease, epoch, day, deltas, sum(used))
                real.run(model.now, "settle", key, lease, struct.pack("<5d", day, *deltas, sum(used)))


def _acquire(real: Real, model: Model, held: list, number: int, value: tuple[int, int]) -> None:
    lease = f"lease{number}"
    reserve = ("acquire", lease, struct.pack("<3d", LEASE_S * 1_000_000, *value))
    answer = real.run(model.now, *reserve)
    expected = model.acquire(lease, value)
    if expected == "seed":
        assert answer == [2, model.now // 86_400]
        pairs = [part for index in range(3) for part in (IDS[index], 5)]
        assert real.run(model.now, "seed", f"seed{number}", int(answer[1]), *pairs) == [1]
        model.seed(5)
        answer = real.run(model.now, *reserve)
        expected = model.acquire(lease, value)
    assert ("refused", "granted")[int(answer[0])] == expected
    if expected == "granted":
        held.append((lease, model.epoch, bytes(answer[1]), int(answer[2]), value))
        for place, index in enumerate(real.passed):
            for kind in range(3):
                assert abs(int(answer[3 + place * 3 + kind]) - model.scopes[index].levels[kind]) <= 1
    else:
        _, scope, kind, wait_us, blocked_us, _ = answer
        assert int(wait_us) > 0
        assert 0 <= int(blocked_us) <= int(wait_us)
        if kind in (b"r", b"i", b"o"):
            _conforms_after(
                model, int(scope) - 1, "rio".index(kind.decode()), value, Fraction(int(wait_us), 10**6)
            )


def _conforms_after(model: Model, scope: int, kind: int, value: tuple[int, int], wait_s: Fraction) -> None:
    """The wait that a refusal names is sufficient for its limit, and hardly longer than needed."""
    limit = getattr(model.scopes[scope].limits, KINDS[kind])
    level, cost = model.scopes[scope].levels[kind], min((1, *value)[kind], limit)
    assert level - wait_s * limit / 60 + cost <= limit + Fraction(1, 1000)
    assert level - (wait_s - Fraction(1, 100)) * limit / 60 + cost > limit
