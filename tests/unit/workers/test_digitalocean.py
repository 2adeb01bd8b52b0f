"""What is sent to DigitalOcean, how its answers are read, and the pauses that its headers ask for."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from core.errors import InvalidRequest
from core.money import usd_to_pico
from sim.digitalocean.cloud import FakeCloud
from tests.support.fake_droplets import START, TOKEN, CloudApi, VirtualTime, finish, hold_to_description
from workers.providers.digitalocean import (
    SPREAD,
    WITHOUT_HEADERS,
    DigitalOceanHosts,
    DropletOptions,
    base_image,
    pace,
    price_pico,
)
from workers.providers.droplet_api import ApiReply
from workers.providers.interface import EngineStart, HostRequest, Outcome

NOW = datetime.fromtimestamp(START, UTC)
REQUEST = HostRequest("live-0123456789ab", "nyc2", "gpu-h100x1-80gb")


class Bodies(CloudApi):
    """Keeps what was sent."""

    def __init__(self, cloud: FakeCloud) -> None:
        super().__init__(cloud)
        self.sent: list[dict[str, Any]] = []

    async def create(self, body: dict[str, Any]) -> ApiReply:
        self.sent.append(body)
        return await super().create(body)


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def cloud(time: VirtualTime) -> FakeCloud:
    fake = FakeCloud(TOKEN, time.seconds)
    fake.seen = hold_to_description
    return fake


def test_one_name_and_tag_by_intent(cloud: FakeCloud, time: VirtualTime) -> None:
    api = Bodies(cloud)
    options = DropletOptions("live", ssh_keys=("1", "aa:bb"), vpc_uuid="v-1", user_data="#!/bin/sh")
    created = finish(DigitalOceanHosts(api, options, time.now).create(REQUEST))
    assert created.outcome is Outcome.OK
    assert created.host is not None
    assert (created.host.name, created.host.usd_pico_per_hour) == (REQUEST.name, usd_to_pico("3.39"))
    assert api.sent == [
        {
            "name": REQUEST.name,
            "region": "nyc2",
            "size": "gpu-h100x1-80gb",
            "image": "gpu-h100x1-base",
            "tags": ["penstock-live", REQUEST.name],
            "monitoring": False,
            "ssh_keys": ["1", "aa:bb"],
            "vpc_uuid": "v-1",
            "user_data": "#!/bin/sh",
        }
    ]


@pytest.mark.parametrize(
    ("model", "line"),
    [("acme/river", "--model acme/river"), ("", "--model ''"), ("a b;c", "--model 'a b;c'")],
)
def test_the_script_of_the_first_start_gets_the_model(
    model: str, line: str, cloud: FakeCloud, time: VirtualTime
) -> None:
    api = Bodies(cloud)
    options = DropletOptions("live", user_data="penstock agent --model {{model}}")
    request = HostRequest(REQUEST.name, REQUEST.region, REQUEST.kind, model)
    finish(DigitalOceanHosts(api, options, time.now).create(request))
    assert api.sent[0]["user_data"] == f"penstock agent {line}"


@pytest.mark.parametrize(
    ("own", "model", "start", "missing"),
    [
        ("agent --model {{model}}", "m", EngineStart(), ""),
        ("agent --model {{model}}", "m", EngineStart("", 1), ""),
        ("agent --model {{model}}", "m", EngineStart("", 4), "{{replicas}} (4), by"),
        ("agent --model {{model}} {{replicas}}", "m", EngineStart("dp8", 4), "{{profile}} (dp8), by"),
        ("agent --model {{model}}", "m", EngineStart("dp8", 4), "{{profile}} (dp8) and {{replicas}} (4), by"),
        ("agent --model {{model}}", "a,b", EngineStart(), "{{replicas}} (0), by"),
        ("agent --model {{model}} {{profile}} {{replicas}}", "a,b", EngineStart("dp8", 4), ""),
        ("#!/bin/sh", "m", EngineStart("dp8", 4), ""),
    ],
)
def test_user_data_that_does_not_tell_the_agent_what_is_planned_creates_nothing(
    own: str, model: str, start: EngineStart, missing: str, cloud: FakeCloud, time: VirtualTime
) -> None:
    api = Bodies(cloud)
    request = HostRequest(REQUEST.name, REQUEST.region, REQUEST.kind, model, start)
    provider = DigitalOceanHosts(api, DropletOptions("live", user_data=own), time.now)
    result = finish(provider.create(request))
    assert result.outcome is (Outcome.REFUSED if missing else Outcome.OK)
    assert missing in result.detail
    assert len(api.sent) == (0 if missing else 1)
    if "{{replicas}}" in own and not missing:
        assert api.sent[0]["user_data"] == "agent --model a,b dp8 4"
    joining = DropletOptions("live", user_data=f"#!/bin/sh\n{own}", schedulers="10.0.0.2:8010")
    told = msgspec.structs.replace(request, name="live-0123456789ab", join_token="t")
    assert finish(DigitalOceanHosts(api, joining, time.now).create(told)).outcome is Outcome.OK


def test_all_pages_and_only_the_fleet_are_listed(cloud: FakeCloud, time: VirtualTime) -> None:
    cloud.droplet_limit = 1_000
    for number in range(250):
        cloud.create(f"live-{number:012x}", "gpu-h100x1-80gb", "nyc2", ["penstock-live"])
    cloud.create("cpu", "s-1vcpu-1gb", "nyc2", ["penstock-live"])
    cloud.create("other", "gpu-h100x1-80gb", "nyc2", ["penstock-staging"])
    cloud.create("live-ffffffffffff", "gpu-h100x1-80gb", "nyc2", [])
    listing = finish(
        DigitalOceanHosts(CloudApi(cloud), DropletOptions("live"), time.now).list_hosts({"gpu-h100x1-80gb"})
    )
    assert listing.complete
    assert len(listing.calls) == 4
    assert {host.name for host in listing.hosts if not host.tagged} == {"live-ffffffffffff"}
    assert {host.name for host in listing.hosts} == {
        *(f"live-{number:012x}" for number in range(250)),
        "cpu",
        "live-ffffffffffff",
    }


def test_droplets_without_gpus_and_tag_are_found_where_the_fleet_has_such_a_kind(
    cloud: FakeCloud, time: VirtualTime
) -> None:
    cloud.create("live-ffffffffffff", "s-1vcpu-1gb", "nyc2", [])
    hosts = DigitalOceanHosts(CloudApi(cloud), DropletOptions("live"), time.now)
    assert finish(hosts.list_hosts({"gpu-h100x1-80gb"})).hosts == ()
    [found] = finish(hosts.list_hosts({"gpu-h100x1-80gb", "s-1vcpu-1gb"})).hosts
    assert (found.name, found.tagged) == ("live-ffffffffffff", False)


def test_a_fleet_is_no_part_of_another_name(cloud: FakeCloud, time: VirtualTime) -> None:
    cloud.create("live-eu-0123456789ab", "gpu-h100x1-80gb", "nyc2", ["penstock-live-eu"])
    assert (
        finish(DigitalOceanHosts(CloudApi(cloud), DropletOptions("live"), time.now).list_hosts(set())).hosts
        == ()
    )


def reply(status: int, body: object = None, **headers: int) -> ApiReply:
    return ApiReply(status, {name.replace("_", "-"): str(value) for name, value in headers.items()}, body)


@pytest.mark.parametrize(
    ("answer", "outcome", "wait"),
    [
        (reply(429, retry_after=17, ratelimit_reset=START + 900), Outcome.THROTTLED, timedelta(seconds=17)),
        (reply(429, ratelimit_reset=START + 900), Outcome.THROTTLED, timedelta(seconds=900)),
        (reply(429), Outcome.THROTTLED, WITHOUT_HEADERS),
        (reply(200, ratelimit_remaining=4000, ratelimit_reset=START + 900), Outcome.OK, None),
        (reply(200, ratelimit_remaining=20, ratelimit_reset=START + 900), Outcome.OK, SPREAD),
        (reply(200, ratelimit_remaining=20, ratelimit_reset=START + 5), Outcome.OK, timedelta(seconds=5)),
        (reply(200, ratelimit_remaining=0, ratelimit_reset=START + 900), Outcome.OK, timedelta(seconds=900)),
    ],
)
def test_pauses_by_headers(answer: ApiReply, outcome: Outcome, wait: timedelta | None) -> None:
    found = pace(answer, NOW, outcome)
    assert (None if found is None else found - NOW) == wait


class Answers(CloudApi):
    """Answers every call with the same."""

    def __init__(self, cloud: FakeCloud, answer: ApiReply) -> None:
        super().__init__(cloud)
        self.answer = answer

    async def create(self, body: dict[str, Any]) -> ApiReply:
        return self.answer

    async def destroy(self, droplet_id: int) -> ApiReply:
        return self.answer


@pytest.mark.parametrize(
    ("status", "message", "outcome"),
    [
        (401, "Unable to authenticate you", Outcome.REFUSED),
        (403, "You are not authorized to perform this operation", Outcome.REFUSED),
        (404, "not found", Outcome.ABSENT),
        (408, "timeout", Outcome.UNKNOWN),
        (422, "Size is not available in this region.", Outcome.REFUSED),
        (422, "Droplet already has a pending event.", Outcome.BUSY),
        (500, "error", Outcome.UNKNOWN),
        (503, "error", Outcome.UNKNOWN),
        (202, "no droplet in it", Outcome.UNKNOWN),
    ],
)
def test_what_an_answer_proves(
    cloud: FakeCloud, time: VirtualTime, status: int, message: str, outcome: Outcome
) -> None:
    api = Answers(cloud, ApiReply(status, {}, {"id": "x", "message": message}))
    result = finish(DigitalOceanHosts(api, DropletOptions("live"), time.now).create(REQUEST))
    assert (result.outcome, result.status) == (outcome, status)
    assert result.detail


def test_prices_of_single_precision_are_the_decimals_that_were_meant() -> None:
    assert price_pico(3.390000104904175) == usd_to_pico("3.39")
    assert price_pico(0.00743999984115362) == usd_to_pico("0.00744")
    assert price_pico(23.92) == usd_to_pico("23.92")


@pytest.mark.parametrize(
    ("kind", "image"),
    [
        ("gpu-h100x1-80gb", "gpu-h100x1-base"),
        ("gpu-h200x8-1128gb", "gpu-h100x8-base"),
        ("gpu-mi300x8-1536gb", "gpu-amd-base"),
        ("s-1vcpu-1gb", "ubuntu-24-04-x64"),
    ],
)
def test_images_by_kind(kind: str, image: str) -> None:
    assert base_image(kind) == image


def test_too_much_user_data_is_refused_before_any_call(cloud: FakeCloud, time: VirtualTime) -> None:
    with pytest.raises(InvalidRequest, match="65537 bytes"):
        DigitalOceanHosts(CloudApi(cloud), DropletOptions("live", user_data="x" * 65_537), time.now)
