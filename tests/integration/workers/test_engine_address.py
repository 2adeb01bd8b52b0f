"""Where engines bind, and at which address they are reached."""

import pytest

from core.errors import InvalidRequest
from workers.machine import EngineAddress, engine_address


@pytest.mark.parametrize(
    ("host", "advertised", "expected"),
    [
        ("127.0.0.1", "", EngineAddress("127.0.0.1", "127.0.0.1")),
        ("10.0.0.5", "", EngineAddress("10.0.0.5", "10.0.0.5")),
        ("0.0.0.0", "127.0.0.2", EngineAddress("127.0.0.2", "127.0.0.2")),
        ("0.0.0.0", "192.0.2.7", EngineAddress("0.0.0.0", "192.0.2.7")),
        ("0.0.0.0", "gpu-1.example.com", EngineAddress("0.0.0.0", "gpu-1.example.com")),
        ("::", "2001:db8::7", EngineAddress("::", "2001:db8::7")),
    ],
    ids=["loopback", "host", "of this machine", "behind NAT", "name", "IPv6"],
)
def test_an_advertised_address_is_bound_where_it_is_of_this_machine(
    host: str, advertised: str, expected: EngineAddress
) -> None:
    assert engine_address(host, advertised) == expected


def test_the_url_of_an_engine() -> None:
    assert EngineAddress("0.0.0.0", "gpu-1").url(8100) == "http://gpu-1:8100"
    assert EngineAddress("::", "2001:db8::7").url(8100) == "http://[2001:db8::7]:8100"


@pytest.mark.parametrize("wrong", ["10.0.0.5:8000", "http://10.0.0.5", "[2001:db8::7]", "a b", "a/b"])
def test_what_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidRequest, match=r"PENSTOCK_ADVERTISE_HOST is .*without a port"):
        engine_address("0.0.0.0", wrong)
