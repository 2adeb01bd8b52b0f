"""Which port `penstock up` takes, and what it says about it."""

import socket

import pytest

from cli.ports import choose_port, is_free
from core.child import free_port
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
