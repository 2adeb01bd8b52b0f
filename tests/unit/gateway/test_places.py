"""Where requests may run, by their key and their headers."""

import msgspec
import pytest

from core.errors import InvalidRequest, PermissionDenied
from core.ids import uuid7
from gateway.places import GPU, REGION, named_places, place_headers, restrict_places
from scheduler.wire import Placement
from tests.support.gateway_fakes import FakeEngines, FakeReply, Gateway, answer, principal
from tests.unit.gateway.test_director import prepared


def test_a_header_names_places_in_any_case_and_order() -> None:
    assert named_places(None, REGION) == ()
    assert named_places(b"sfo3, NYC2,nyc2", REGION) == ("nyc2", "sfo3")


@pytest.mark.parametrize(
    "value", [b",", b"a b", b"-x", b"x" * 64, b"\xff", b",".join(b"r%d" % n for n in range(17))]
)
def test_a_header_that_names_none_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        named_places(value, REGION)
    assert refused.value.param == "x-penstock-region"


@pytest.mark.parametrize(
    ("asked", "own", "result"),
    [((), (), ()), (("a",), (), ("a",)), ((), ("a", "b"), ("a", "b")), (("a",), ("a", "b"), ("a",))],
)
def test_a_request_is_narrowed_to_its_key(
    asked: tuple[str, ...], own: tuple[str, ...], result: tuple[str, ...]
) -> None:
    request = msgspec.structs.replace(prepared(), regions=asked, gpus=asked)
    restrict_places(principal(regions=own, gpus=own), request)
    assert (request.regions, request.gpus) == (result, result)


@pytest.mark.parametrize(("name", "header"), [("regions", REGION), ("gpus", GPU)])
async def test_a_request_for_places_of_others_is_refused_before_anything_is_reserved(
    name: str, header: bytes
) -> None:
    gateway = Gateway(FakeEngines())
    asked = msgspec.structs.replace(prepared(), **{name: ("a", "c")})
    with pytest.raises(PermissionDenied) as refused:
        await gateway.director.handle(uuid7(), principal(**{name: ("a", "b")}), asked, FakeReply())
    assert (refused.value.code, refused.value.param) == ("place_not_allowed", header.decode())
    assert not gateway.scheduler.requests


@pytest.mark.parametrize("stream", [False, True])
async def test_the_scheduler_hears_where_and_the_answer_says_where(stream: bool) -> None:
    gateway = Gateway(FakeEngines(answer(["ok"])))
    gateway.scheduler.region, gateway.scheduler.gpu = "nyc2", "B300"
    reply = FakeReply()
    await gateway.director.handle(uuid7(), principal(regions=("nyc2",)), prepared(stream=stream), reply)
    [asked] = gateway.scheduler.requests
    assert (asked.regions, asked.gpus) == (("nyc2",), ())
    assert {(REGION, b"nyc2"), (GPU, b"B300")} <= set(reply.headers)
    [record] = gateway.meter.settled
    assert (record.open.region, record.open.gpu) == ("nyc2", "B300")


def test_an_unknown_place_has_no_header() -> None:
    assert place_headers(Placement("r", "e", "h/r0", "http://x", "m", "b")) == []
