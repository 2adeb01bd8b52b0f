"""Which port `penstock up` takes, and what it says about it."""

import socket
from pathlib import Path

import pytest

from cli.ports import choose_port, is_free, serve_metrics_on
from cli.supervisor import RoleSpec
from core.child import free_port, kernel_ports
from core.errors import InvalidRequest


@pytest.fixture
def taken() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_the_default_when_it_is_free() -> None:
    default = free_port()
    assert choose_port("127.0.0.1", None, default, "--port", avoid=set()) == (default, "")


def test_another_one_with_a_word_about_it_when_the_default_is_taken(taken: int) -> None:
    port, note = choose_port("127.0.0.1", None, taken, "--port", avoid=set())
    assert port != taken
    assert is_free("127.0.0.1", port)
    assert note == f"Port {taken} is taken; using {port} (--port chooses another)."


def test_a_port_that_was_asked_for_is_taken_or_refused(taken: int) -> None:
    free = free_port()
    assert choose_port("127.0.0.1", free, 1, "--port", avoid=set()) == (free, "")
    with pytest.raises(InvalidRequest, match=f"port {taken} is taken.*--console-port"):
        choose_port("127.0.0.1", taken, 1, "--console-port", avoid=set())
    with pytest.raises(InvalidRequest, match=f"port {free} is taken"):
        choose_port("127.0.0.1", free, 1, "--console-port", avoid={free})


def test_zero_is_any_free_one() -> None:
    port, note = choose_port("127.0.0.1", 0, 1, "--port", avoid=set())
    assert is_free("127.0.0.1", port)
    assert note == ""


def test_a_free_port_is_none_of_those_that_outgoing_connections_take() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(first <= free_port() <= last for _ in range(50))


def test_a_port_that_the_kernel_may_give_away_is_taken_with_a_warning() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    assert port in kernel_ports()
    chosen, note = choose_port("127.0.0.1", port, 1, "--port", avoid=set())
    assert chosen == port
    assert "the kernel gives to outgoing connections" in note
    assert "Use another --port." in note


def test_a_free_port_is_kept_for_the_server_that_asked_for_it() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)) as server:
        assert server.getsockname()[1] == port


def test_a_process_whose_port_is_taken_starts_again_on_another(taken: int) -> None:
    bare = RoleSpec("api-1", "api", ["true"], {"A": "b"}, Path(), "", 1.0)
    spec = serve_metrics_on(bare, "127.0.0.1", taken)
    assert spec.renew is not None
    moved = spec.renew(spec)
    port = int(moved.env["PENSTOCK_METRICS_PORT"])
    assert port != taken
    assert moved.health_url == f"http://127.0.0.1:{port}/healthz"
    assert moved.env["A"] == "b"
    assert moved.renew is not None
    assert moved.renew(moved) == moved, "its port is free"
