"""Tokens per event by predicted speed, and what the relay asks engines for."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ids import uuid7
from gateway.interval import HOLD_SHARE, MAX_INTERVAL, UNKNOWN_WHOLE_INTERVAL, stream_interval
from gateway.schemas.chat import parse_chat
from tests.support.gateway_fakes import FakeEngines, FakeModel, FakeReply, Gateway, answer, principal


@given(speed=st.floats(20, 10_000))
def test_a_stream_has_twenty_to_forty_events_a_second(speed: float) -> None:
    interval = stream_interval(1 / speed, streamed=True, covered=0)
    assert 20 <= speed / interval <= 41
    if speed < 40:
        assert interval == 1


@given(speed=st.floats(0.1, 500))
def test_a_whole_answer_has_about_one(speed: float) -> None:
    interval = stream_interval(1 / speed, streamed=False, covered=0)
    assert interval == 1 or 0.6 <= speed / interval <= 1.6


def test_unknown_speed() -> None:
    assert stream_interval(0.0, streamed=True, covered=0) == 1
    assert stream_interval(0.0, streamed=False, covered=0) == UNKNOWN_WHOLE_INTERVAL


@given(itl=st.floats(0, 10), streamed=st.booleans(), covered=st.integers(0, 100_000))
def test_a_hold_that_may_end_first_bounds_it(itl: float, streamed: bool, covered: int) -> None:
    interval = stream_interval(itl, streamed=streamed, covered=covered)
    assert 1 <= interval <= MAX_INTERVAL
    if covered:
        assert interval <= max(1, covered // HOLD_SHARE)


def body(**more: object) -> bytes:
    return msgspec.json.encode({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **more})


@pytest.mark.parametrize(
    ("takes", "more", "interval"),
    [
        (True, {}, 100),
        (True, {"stream": True}, 4),
        (True, {"stream": True, "max_tokens": 9}, 4),
        (False, {"stream": True}, None),
        (False, {"stream_interval": 7}, None),
        (True, {"stream_interval": 7}, 100),
    ],
)
async def test_the_gateway_alone_sets_the_interval(
    takes: bool, more: dict[str, object], interval: int | None
) -> None:
    engines = FakeEngines(answer(["a"]))
    gateway = Gateway(engines)
    gateway.scheduler.stream_interval, gateway.scheduler.predicted_itl_s = takes, 0.01
    await gateway.director.handle(uuid7(), principal(), parse_chat(body(**more)), FakeReply())
    assert msgspec.json.decode(engines.bodies[0]).get("stream_interval") == interval


@pytest.mark.parametrize("priority", [None, 0, 2])
async def test_an_engine_gets_the_priority_of_the_placement(priority: int | None) -> None:
    engines = FakeEngines(answer(["a"]))
    gateway = Gateway(engines)
    gateway.scheduler.priority = priority
    await gateway.director.handle(uuid7(), principal(), parse_chat(body()), FakeReply())
    sent = msgspec.json.decode(engines.bodies[0])
    assert sent.get("priority") == priority
    assert ("priority" in sent) == (priority is not None)


@pytest.mark.parametrize(("context_len", "limit"), [(8192, 4096), (4150, None)])
async def test_the_models_own_limit_travels_where_it_fits(context_len: int, limit: int | None) -> None:
    engines = FakeEngines(answer(["a"]))
    gateway = Gateway(engines, model=FakeModel(context_len=context_len))
    await gateway.director.handle(uuid7(), principal(), parse_chat(body()), FakeReply())
    assert msgspec.json.decode(engines.bodies[0]).get("max_tokens") == limit
