"""Failures as the command line writes them."""

import pytest

from core.errors import InvalidRequest
from sim.pool.faults import Fault, Kill, KillApiProcess, RestartScheduler, Slow, parse_fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("host-1/llama-3.3-70b-0@60", Kill(60.0, "host-1/llama-3.3-70b-0")),
        ("hang:host-1/a@60.5+20", Slow(60.5, "host-1/a", 0.0, 20.0)),
        ("slow:host-1/a@60+30x0.5", Slow(60.0, "host-1/a", 0.5, 30.0)),
        ("scheduler@60+2", RestartScheduler(60.0, 2.0)),
        ("scheduler@60", RestartScheduler(60.0, 1.0)),
        ("api:1@60", KillApiProcess(60.0, 1)),
    ],
)
def test_what_is_written_is_read(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize("text", ["", "host-1/a", "@60", "api:one@60", "host-1/a@soon", "explode:a@1"])
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_fault(text)
