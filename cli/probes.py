"""What the probes of a process say about it: whether it hangs and has to be started again."""

import aiohttp
import msgspec

PROBE_S = 5.0
"""Seconds between two probes, and those that one may take."""
SILENT_PROBES = 6
"""Probes in a row without an answer after which a process hangs: 30 to 60 s. A pause of the machine is one probe."""
STARTING_PROBES = 36
"""The same for a process that has not answered since its start: 3 to 6 minutes."""
STALLED = "stalled"
"""The status of a process that answers, and says that one of its loops stands still."""


class _Health(msgspec.Struct):
    status: str = ""
    stalled: list[str] = []


class ProbeCount:
    """The probes of one process since its start."""

    def __init__(self) -> None:
        self.answered = False
        """Whether it has answered once."""
        self._failed = 0
        self._why = ""

    def add(self, why: str) -> str:
        """Note a probe, with `why` it failed or "". Returns why the process hangs; empty when it does not."""
        if not why:
            self.answered, self._failed = True, 0
            return ""
        self._failed, self._why = self._failed + 1, why
        limit = SILENT_PROBES if self.answered else STARTING_PROBES
        return f"{self._failed} probes in a row failed: {why}" if self._failed >= limit else ""


async def probe(session: aiohttp.ClientSession, url: str) -> str:
    """Why a process does not run, by its health URL; empty when it runs.

    An answer that it is unhealthy is a good one: what it lacks, such as its database, no restart brings back. Only one
    that says that a loop of its own stands still is not.
    """
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=PROBE_S)) as response:
            body = await response.read()
    except TimeoutError:
        return f"no answer within {PROBE_S:.0f} s"
    except aiohttp.ClientError as error:
        return f"no answer: {error}"
    try:
        health = msgspec.json.decode(body, type=_Health)
    except msgspec.DecodeError:  # the health of a process that is none of ours
        return ""
    return f"it stands still: {', '.join(health.stalled)}" if health.status == STALLED else ""
