"""The fake cloud answers as DigitalOcean's description says, and lists GPU droplets as the real API does."""

from fractions import Fraction
from typing import Any

import pytest
from jsonschema import ValidationError

from sim.digitalocean.cloud import FakeCloud, Request, Response
from sim.digitalocean.faults import BURSTS, Cut, Fault
from tests.support.fake_droplets import START, TOKEN, VirtualTime, hold_to_description

GPU, CPU = "gpu-h100x1-80gb", "s-1vcpu-1gb"


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def cloud(time: VirtualTime) -> FakeCloud:
    fake = FakeCloud(TOKEN, time.seconds)
    fake.seen = hold_to_description
    return fake


def ask(cloud: FakeCloud, method: str, path: str, body: Any = None, **query: str) -> Response:
    return cloud.handle(Request(method, path, query, body, TOKEN))


def order(name: str, size: str = GPU, **fields: Any) -> dict[str, Any]:
    return {"name": name, "size": size, "region": "nyc2", "image": "gpu-h100x1-base", **fields}


def names(response: Response) -> list[str]:
    assert response.body is not None
    return [one["name"] for one in response.body["droplets"]]


def test_gpu_droplets_are_in_no_plain_list(cloud: FakeCloud) -> None:
    ask(cloud, "POST", "/v2/droplets", order("gpu", tags=["fleet"]))
    ask(cloud, "POST", "/v2/droplets", order("cpu", CPU, tags=["fleet"]))
    assert names(ask(cloud, "GET", "/v2/droplets")) == ["cpu"]
    assert names(ask(cloud, "GET", "/v2/droplets", type="gpus")) == ["gpu"]
    assert names(ask(cloud, "GET", "/v2/droplets", tag_name="fleet")) == ["gpu", "cpu"]
    assert names(ask(cloud, "GET", "/v2/droplets", type="gpus", name="GPU")) == ["gpu"]
    assert ask(cloud, "GET", "/v2/droplets", type="gpus", tag_name="fleet").status == 422
    assert ask(cloud, "GET", "/v2/droplets", name="cpu", tag_name="fleet").status == 422


def test_pages(cloud: FakeCloud) -> None:
    cloud.droplet_limit = 100
    for number in range(45):
        ask(cloud, "POST", "/v2/droplets", order(f"d{number}"))
    pages = [ask(cloud, "GET", "/v2/droplets", type="gpus", page=str(n)) for n in (1, 2, 3)]
    assert [len(names(page)) for page in pages] == [20, 20, 5]
    assert [bool(page.body and page.body["links"]) for page in pages] == [True, True, False]
    assert ask(cloud, "GET", "/v2/droplets", per_page="201").status == 422


def test_a_droplet_starts_and_ends_with_its_actions(cloud: FakeCloud, time: VirtualTime) -> None:
    created = ask(cloud, "POST", "/v2/droplets", order("one"))
    assert created.body is not None
    path = f"/v2/droplets/{created.body['droplet']['id']}"
    assert created.body["droplet"]["status"] == "new"
    refused = ask(cloud, "DELETE", path)
    assert refused.status == 422
    assert refused.body is not None
    assert refused.body["message"] == "Droplet already has a pending event."
    time.at += 40
    shown = ask(cloud, "GET", path).body
    assert shown is not None
    assert (shown["droplet"]["status"], shown["droplet"]["size"]["price_hourly"]) == (
        "active",
        3.390000104904175,
    )
    cloud.destroy_s = 5
    assert ask(cloud, "DELETE", path).status == 204
    assert ask(cloud, "DELETE", path).status == 422
    time.at += 5
    assert ask(cloud, "GET", path).status == 404
    actions = ask(cloud, "GET", "/v2/actions").body
    assert actions is not None
    assert [(one["type"], one["status"]) for one in actions["actions"]] == [
        ("destroy", "completed"),
        ("create", "completed"),
    ]
    assert cloud.ledger.meters[created.body["droplet"]["id"]].destroyed_at == START + 45


@pytest.mark.parametrize(
    ("fault", "status", "exists"),
    [
        (Fault.CREATE_ERROR_AFTER, 500, True),
        (Fault.CREATE_ERROR_BEFORE, 500, False),
        (Fault.CREATE_CUT_AFTER, None, True),
        (Fault.CREATE_NOTHING, 202, False),
        (Fault.CREATE_HIDDEN, 202, True),
        (Fault.CREATE_NO_SIZE, 422, False),
        (Fault.CREATE_LIMIT, 422, False),
        (Fault.BURST, 429, False),
        (Fault.SPENT, 429, False),
        (Fault.CREATE_BURST, 429, False),
    ],
)
def test_faults_of_a_create(cloud: FakeCloud, fault: Fault, status: int | None, exists: bool) -> None:
    cloud.faults.add(fault)
    if status is None:
        with pytest.raises(Cut):
            ask(cloud, "POST", "/v2/droplets", order("one"))
    else:
        response = ask(cloud, "POST", "/v2/droplets", order("one"))
        assert response.status == status
        assert ("retry-after" in response.headers) == (fault in BURSTS)
    assert bool(cloud.alive()) == exists
    assert bool(cloud.ledger.meters) == exists
    assert cloud.faults.used == {fault: 1}


def test_calls_inside_the_wait_of_a_429_are_counted(cloud: FakeCloud, time: VirtualTime) -> None:
    cloud.faults.add(Fault.BURST)
    assert ask(cloud, "GET", "/v2/sizes").headers["retry-after"] == "30"
    time.at += 29
    assert ask(cloud, "GET", "/v2/sizes").status == 429
    time.at += 1
    assert ask(cloud, "GET", "/v2/sizes").status == 200
    assert cloud.too_early == 1


def test_the_hourly_quota_rolls(cloud: FakeCloud, time: VirtualTime) -> None:
    cloud.hourly_limit = 2
    first = ask(cloud, "GET", "/v2/sizes")
    assert first.headers["ratelimit-remaining"] == "1"
    assert first.headers["ratelimit-reset"] == str(START + 3600)
    ask(cloud, "GET", "/v2/sizes")
    assert ask(cloud, "GET", "/v2/sizes").status == 429
    time.at += 3600
    assert ask(cloud, "GET", "/v2/sizes").status == 200


def test_the_bill_is_per_second_and_at_least_a_minute(cloud: FakeCloud, time: VirtualTime) -> None:
    short = cloud.create("short", GPU, "nyc2", [])
    cloud.prices[GPU] = Fraction("4.00")
    later = cloud.create("later", GPU, "nyc2", [])
    cheap = cloud.create("cheap", CPU, "nyc2", [])
    time.at += 1
    cloud.ledger.close(short.droplet_id, time.at)
    assert cloud.ledger.cents(time.at, frozenset({short.droplet_id})) == 6  # 60 s at 3.39 are 5.65 cents
    time.at += 1799
    assert cloud.ledger.cents(time.at, frozenset({later.droplet_id})) == 200
    assert cloud.ledger.cents(time.at, frozenset({cheap.droplet_id})) == 1


def test_an_announced_reclaim_ends_a_droplet(cloud: FakeCloud, time: VirtualTime) -> None:
    spot = cloud.create("spot", "gpu-mi350x1-288gb-spot", "tor1", [])
    cloud.reclaim(spot.droplet_id, START + 7200)
    assert names(ask(cloud, "GET", "/v2/droplets", type="gpus")) == ["spot"]
    time.at += 7200
    assert names(ask(cloud, "GET", "/v2/droplets", type="gpus")) == []
    assert cloud.ledger.cents(time.at) == 492


def test_the_token_and_wrong_orders_are_refused(cloud: FakeCloud) -> None:
    assert cloud.handle(Request("GET", "/v2/sizes", {}, None, "wrong")).status == 401
    for wrong in (order("a_b"), order("x", "gpu-none"), order("x", region="mars"), None):
        assert ask(cloud, "POST", "/v2/droplets", wrong).status == 422
    assert ask(cloud, "POST", "/v2/droplets", order("x", user_data="x" * 65_537)).status == 422
    assert ask(cloud, "GET", "/v2/droplets/7").status == 404


def test_the_description_is_really_compared() -> None:
    request = Request("GET", "/v2/sizes", {}, None, TOKEN)
    headers = {f"ratelimit-{name}": "1" for name in ("limit", "remaining", "reset")}
    with pytest.raises(ValidationError):
        hold_to_description(request, Response(200, headers, {"sizes": [{"slug": "x"}], "meta": {"total": 1}}))
    with pytest.raises(KeyError):
        hold_to_description(request, Response(200, {}, {"sizes": [], "meta": {"total": 0}}))
