"""The tier of a request: whose price and band it gets."""

import json

import pytest

from core.errors import InvalidRequest
from core.ids import uuid7
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from gateway.schemas.completions import parse_completion
from gateway.service_tier import ECHOED, tier_of
from tests.support.gateway_fakes import FakeEngines, FakeReply, Gateway, answer, principal

PRICED = ("priority", "standard", "batch")


def prepared(**fields: object) -> PreparedRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], **fields}
    return parse_chat(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("asked", "own", "tier"),
    [
        ("", "priority", "priority"),
        ("auto", "batch", "batch"),
        ("default", "standard", "standard"),
        ("standard", "priority", "standard"),
        ("flex", "standard", "batch"),
        ("batch", "batch", "batch"),
        ("priority", "priority", "priority"),
    ],
)
def test_names_of_tiers(asked: str, own: str, tier: str) -> None:
    assert tier_of(asked, own, lambda: PRICED) == tier


@pytest.mark.parametrize(
    ("asked", "own", "offered", "code"),
    [
        ("priority", "standard", PRICED, "service_tier_not_allowed"),
        ("default", "batch", PRICED, "service_tier_not_allowed"),
        ("flex", "standard", ("standard",), "service_tier_not_offered"),
        ("scale", "standard", PRICED, "invalid_service_tier"),
    ],
)
def test_other_tiers_are_refused(asked: str, own: str, offered: tuple[str, ...], code: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tier_of(asked, own, lambda: offered)
    assert (refused.value.code, refused.value.param) == (code, "service_tier")


@pytest.mark.parametrize(
    ("asked", "own", "highest", "tier"),
    [
        ("priority", "standard", "priority", "priority"),
        ("default", "batch", "priority", "standard"),
        ("flex", "standard", "priority", "batch"),
        ("auto", "standard", "priority", "standard"),
        ("priority", "priority", "batch", "priority"),
        ("standard", "priority", "batch", "standard"),
    ],
)
def test_an_organisation_may_be_allowed_more(asked: str, own: str, highest: str, tier: str) -> None:
    assert tier_of(asked, own, lambda: PRICED, highest) == tier


def test_it_is_not_allowed_more_than_that() -> None:
    with pytest.raises(InvalidRequest, match="tier is batch"):
        tier_of("priority", "batch", lambda: PRICED, "standard")


def test_capacity_bought_in_advance_is_refused_in_words() -> None:
    with pytest.raises(InvalidRequest, match="bought from OpenAI in advance") as refused:
        tier_of("scale", "priority", lambda: PRICED, "priority")
    assert refused.value.code == "invalid_service_tier"


@pytest.mark.parametrize("kind", ["live", "test"])
async def test_a_request_of_a_dearer_tier_is_placed_and_priced_by_it(kind: str) -> None:
    gateway, reply = Gateway(FakeEngines(answer(["a"]))), FakeReply()
    gateway.prices.offered = ["priority", "standard"]
    allowed = principal(kind=kind, highest_tier="priority")
    await gateway.director.handle(uuid7(), allowed, prepared(service_tier="priority"), reply)
    assert json.loads(reply.body)["service_tier"] == "priority"
    if kind == "live":
        assert [one.tier for one in gateway.holds.requests] == ["priority"]
        assert [one.tier for one in gateway.scheduler.requests] == ["priority"]
        assert gateway.meter.settled[0].open.tier == "priority"


def test_the_own_tier_needs_no_look_at_the_prices() -> None:
    def never() -> tuple[str, ...]:
        raise AssertionError

    assert tier_of("default", "standard", never) == "standard"


async def test_hold_placement_and_usage_follow_the_request() -> None:
    gateway = Gateway(FakeEngines(answer(["Hel", "lo"])))
    reply = FakeReply()
    asked = prepared(service_tier="flex", stream=True, stream_options={"include_usage": True})
    await gateway.director.handle(uuid7(), principal(), asked, reply)
    assert [hold.tier for hold in gateway.holds.requests] == ["batch"]
    assert [request.tier for request in gateway.scheduler.requests] == ["batch"]
    assert [record.open.tier for record in gateway.meter.settled] == ["batch"]
    assert reply.documents()[-1]["service_tier"] == ECHOED["batch"] == "flex"


async def test_a_whole_answer_echoes_it() -> None:
    gateway = Gateway(FakeEngines(answer(["Hel", "lo"])))
    reply = FakeReply()
    await gateway.director.handle(uuid7(), principal(), prepared(), reply)
    assert json.loads(reply.body)["service_tier"] == "default"


async def test_a_tier_that_may_not_be_used_reserves_nothing() -> None:
    gateway = Gateway(FakeEngines())
    with pytest.raises(InvalidRequest):
        await gateway.director.handle(uuid7(), principal(), prepared(service_tier="priority"), FakeReply())
    assert not gateway.rates.granted
    gateway.assert_resolved()


def test_both_routes_take_the_field() -> None:
    assert prepared().service_tier == ""
    assert prepared(service_tier=None).service_tier == ""
    assert prepared(service_tier="flex").service_tier == "flex"
    text = parse_completion(b'{"model":"tiny","prompt":"x","service_tier":"batch"}')
    assert text.service_tier == "batch"
    assert b"service_tier" not in text.engine_body("tiny", "")
