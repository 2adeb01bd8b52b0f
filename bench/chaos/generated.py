"""What the simulated engines wrote down that they generated (sim/engine/request_log.py), by request."""

import json
from dataclasses import dataclass, field
from math import inf
from pathlib import Path


@dataclass
class Generated:
    """One request in the engines."""

    ended: list[int] = field(default_factory=list)
    """Output tokens over all choices of each attempt that ended in a living engine."""
    begun: int = 0
    """Attempts that an engine began."""

    @property
    def is_known(self) -> bool:
        """Whether no attempt was in an engine that was killed, which writes no second line."""
        return len(self.ended) == self.begun

    @property
    def most(self) -> int:
        """Output tokens of the longest attempt: a request is billed one of them."""
        return max(self.ended, default=0)

    @property
    def at_most(self) -> float:
        """Output tokens of all attempts together; without a bound when one was in an engine that was killed."""
        return sum(self.ended) if self.is_known else inf


def read_engine_log(path: Path) -> dict[str, Generated]:
    """Return what is known of each request; empty when no engine has begun one."""
    found: dict[str, Generated] = {}
    if not path.exists():
        return found
    for line in path.read_text().splitlines():
        try:
            each = json.loads(line)
        except ValueError:
            continue  # its engine was killed while it wrote
        request = found.setdefault(each["request_id"], Generated())
        if "generated" in each:
            request.ended.append(each["generated"])
        else:
            request.begun += 1
    return found
