"""Faults that a test asks of the fake cloud: each is used up by the next call that it concerns."""

from collections import deque
from enum import StrEnum
from typing import NamedTuple


class Fault(StrEnum):
    """What goes wrong with one call. The names of those that concern one operation begin with it."""

    CREATE_ERROR_AFTER = "create_error_after"
    """The droplet is created and billed, the answer is a 500."""
    CREATE_ERROR_BEFORE = "create_error_before"
    """Nothing is created, the answer is a 500."""
    CREATE_CUT_AFTER = "create_cut_after"
    """The droplet is created and billed, the connection breaks before the answer."""
    CREATE_NOTHING = "create_nothing"
    """The answer is 202, and no droplet ever appears or is billed."""
    CREATE_HIDDEN = "create_hidden"
    """The answer is 202; for `Faults.hidden_s` seconds the droplet is 404 and in no list."""
    CREATE_NO_SIZE = "create_no_size"
    """422: the size is not available in the region, although it is listed."""
    CREATE_LIMIT = "create_limit"
    """422: the account's limit of droplets is reached."""
    CREATE_BURST = "create_burst"
    """429 with retry-after, on a create."""
    DESTROY_BURST = "destroy_burst"
    """429 with retry-after, on a destroy."""
    DESTROY_PENDING = "destroy_pending"
    """422: the droplet has a pending event."""
    DESTROY_ERROR_AFTER = "destroy_error_after"
    """The droplet is destroyed, the answer is a 500."""
    DESTROY_CUT_AFTER = "destroy_cut_after"
    """The droplet is destroyed, the connection breaks before the answer."""
    DESTROY_NOT_FOUND = "destroy_not_found"
    """404 although the droplet is there."""
    LIST_ERROR = "list_error"
    """500 on any GET."""
    ACTIONS_ERROR = "actions_error"
    """500 on the list of actions."""
    BURST = "burst"
    """429 with retry-after, on any call."""
    SPENT = "spent"
    """429 without retry-after, as for an hourly limit that is used up; ratelimit-reset says until when."""


BURSTS = frozenset({Fault.BURST, Fault.CREATE_BURST, Fault.DESTROY_BURST})
"""Those that answer 429 with retry-after."""


class Cut(Exception):
    """The connection broke before the answer."""


class Call(NamedTuple):
    """A call as the fake has seen it."""

    at: float
    operation: str
    status: int
    """0 = the connection was cut."""


def _concerns(fault: Fault, operation: str) -> bool:
    if fault in (Fault.BURST, Fault.SPENT):
        return True
    if fault is Fault.LIST_ERROR:
        return operation in ("list", "get", "actions", "sizes", "account")
    return fault.value.startswith(operation)


class Faults:
    """The faults that are still to happen, in order, and how long those last that take time."""

    def __init__(self) -> None:
        self._next: deque[Fault] = deque()
        self.used: dict[Fault, int] = {}
        """How often each has happened."""
        self.retry_after_s = 30
        """Seconds that a BURST asks a caller to wait, and that SPENT lasts."""
        self.hidden_s = 60
        """Seconds for which a CREATE_HIDDEN droplet is not shown."""
        self.hidden_after_error_s = 60
        """The same for one whose create ended with an error or without an answer."""

    def add(self, *faults: Fault) -> None:
        """Let these happen, each at the next call that it concerns."""
        self._next.extend(faults)

    def clear(self) -> None:
        """Forget the faults that have not happened."""
        self._next.clear()

    def take(self, operation: str) -> Fault | None:
        """The first fault that concerns a call of `operation`; it is used up."""
        for fault in self._next:
            if _concerns(fault, operation):
                self._next.remove(fault)
                self.used[fault] = self.used.get(fault, 0) + 1
                return fault
        return None
