"""The sequence of faults of a seed.

Faults come in decks of DECK_SIZE: each deck holds every kind as often as CARDS says, in an order of its own. Fault
number n of a seed is always the same one, however many follow, so that a failing seed can be replayed up to n.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice

KILLS = ("api", "scheduler", "jobs", "agent", "console", "engine", "postgres-backend", "redis")
"""What `kill` sends SIGKILL to: one process of a role, a backend of PostgreSQL, or Redis."""
STOPS = ("api", "scheduler", "jobs", "agent", "engine", "redis")
"""What `stop` stops with SIGSTOP for a while."""
CLOCKS = ("api", "scheduler", "jobs", "agent")
"""Roles whose clock may be stepped."""
LINKS = ("postgres", "redis", "clients")
"""Connections that pass a fault proxy."""
TROUBLES = ("latency", "narrow", "silent", "cut")
"""What a proxy does to its link: delay, few bytes a second, nothing passes, all connections are reset."""
CARDS = {
    "kill": 8, "crash-postgres": 1, "freeze-postgres": 1, "stop": 2, "flush-redis": 1, "full-disk": 1, "disk-error": 1,
    "torn-spool": 1, "clock": 1, "network": 2, "restart": 1,
}  # fmt: skip
"""Faults of each kind in a deck."""
DECK_SIZE = sum(CARDS.values())


@dataclass(frozen=True)
class Fault:
    """One fault. It begins `after_s` seconds after the one before has begun and lasts `lasts_s`; 0 = at once over."""

    number: int
    kind: str
    target: str = ""
    after_s: float = 0.0
    lasts_s: float = 0.0
    pick: int = 0
    """Chooses among the processes of the target: modulo their number."""
    options: dict[str, float] = field(default_factory=dict)
    """Figures of the kind: `step_s` of a clock, `latency_s` and `bytes_per_s` of a network, `cut` of a spool."""

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value:g}" for name, value in self.options.items())
        lasts = f"{self.lasts_s:.1f} s" if self.lasts_s else ""
        extra = ", ".join(part for part in (lasts, figures) if part)
        return f"{self.number}: {self.kind} {self.target}".rstrip() + (f" ({extra})" if extra else "")


def plan(seed: int, faults: int) -> list[Fault]:
    """Return the first `faults` faults of a seed."""
    return list(islice(_all(seed), faults))


def _all(seed: int) -> Iterator[Fault]:
    number = 0
    for deck in count():
        rng = random.Random(f"{seed}/{deck}")
        kinds = [kind for kind, times in CARDS.items() for _ in range(times)]
        kills = list(KILLS)
        rng.shuffle(kinds)
        rng.shuffle(kills)
        for kind in kinds:
            number += 1
            yield _fault(rng, number, kind, kills)


def _fault(rng: random.Random, number: int, kind: str, kills: list[str]) -> Fault:
    after_s = round(rng.uniform(0.5, 4.5), 2)
    lasts_s = round(rng.uniform(0.3, 6.0), 2)
    pick = rng.randrange(1 << 16)
    options: dict[str, float] = {}
    target = ""
    match kind:
        case "kill":
            target, lasts_s = kills.pop(), 0.0
        case "stop":
            target = rng.choice(STOPS)
        case "clock":
            target = rng.choice(CLOCKS)
            options["step_s"] = rng.choice((-1, 1)) * rng.choice((2, 90, 3600, 86_400, 40 * 86_400))
        case "network":
            target, trouble = rng.choice(LINKS), rng.choice(TROUBLES)
            options = {
                "latency": {"latency_s": round(rng.uniform(0.02, 0.6), 3)},
                "narrow": {"bytes_per_s": float(rng.choice((2_000, 20_000)))},
                "silent": {"silent": 1.0},
                "cut": {"cut": 1.0},
            }[trouble]
            lasts_s = 0.0 if trouble == "cut" else lasts_s
        case "torn-spool":
            options["cut"] = float(rng.randrange(2))
            lasts_s = 0.0
        case "flush-redis" | "restart":
            lasts_s = 0.0
    return Fault(number, kind, target, after_s, lasts_s, pick, options)
