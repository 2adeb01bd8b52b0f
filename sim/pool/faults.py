"""Faults injected into a run, with their times."""

import re
from dataclasses import dataclass

from core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Kill:
    """A replica dies: its requests fail, and it returns after a cold start with an empty cache."""

    at: float
    replica_id: str


@dataclass(frozen=True, slots=True)
class Slow:
    """A replica runs at `speed` times its own speed for `seconds`; 0 makes it hang."""

    at: float
    replica_id: str
    speed: float
    seconds: float


@dataclass(frozen=True, slots=True)
class RestartScheduler:
    """The central scheduler dies and is replaced after `away_s` seconds; messages to it wait."""

    at: float
    away_s: float = 1.0


@dataclass(frozen=True, slots=True)
class KillApiProcess:
    """An API process dies with all its requests; the others take the arrivals."""

    at: float
    router: int


Fault = Kill | Slow | RestartScheduler | KillApiProcess

_FAULT = re.compile(
    r"(?:(?P<kind>hang|slow|api):)?(?P<name>[^@:]+)@(?P<at>\d+(?:\.\d+)?)"
    r"(?:\+(?P<seconds>\d+(?:\.\d+)?))?(?:x(?P<speed>\d*\.?\d+))?"
)


def parse_fault(text: str) -> Fault:
    """Return a fault from its command-line form, with times in seconds.

    `host-1/a@60` kills a replica at 60 s, `hang:host-1/a@60+20` stops it for 20 s, `slow:host-1/a@60+30x0.5`
    halves its speed for 30 s, `scheduler@60+2` stops the scheduler for 2 s, `api:1@60` kills an API process.
    Raises InvalidRequest for any other text.
    """
    match = _FAULT.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"cannot read the failure {text!r}; write REPLICA@T, hang:REPLICA@T+S, slow:REPLICA@T+SxSPEED, "
            "scheduler@T or api:N@T",
            param="fail",
        )
    at, name, kind = float(match["at"]), match["name"], match["kind"]
    seconds = float(match["seconds"]) if match["seconds"] else None
    if kind == "api":
        if not name.isdigit():
            raise InvalidRequest(f"{text!r}: API processes have numbers, from 0", param="fail")
        return KillApiProcess(at, int(name))
    if kind == "hang":
        return Slow(at, name, 0.0, 10.0 if seconds is None else seconds)
    if kind == "slow":
        return Slow(at, name, float(match["speed"] or 0.5), 30.0 if seconds is None else seconds)
    if name == "scheduler":
        return RestartScheduler(at, 1.0 if seconds is None else seconds)
    return Kill(at, name)
