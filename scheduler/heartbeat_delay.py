"""How long a heartbeat has waited before the scheduler reads it.

A scheduler that was stopped, or whose connection was slow, reads figures that are seconds old. Clocks of two machines
have no common zero, so only differences count: the heartbeat that came fastest has waited for nothing, as NTP's clock
filter assumes (RFC 5905, section 10).
"""

from workers.wire import Heartbeat

DRIFT = 2e-4
"""Seconds per second by which two clocks may run apart: twice what a bad quartz does."""


class HeartbeatDelays:
    """The delays of all agents. Pure: times are arguments, in monotonic seconds."""

    def __init__(self) -> None:
        self._fastest: dict[str, tuple[str, float, float]] = {}
        """Agent -> its boot, the least difference between the two clocks, and when it was taken."""

    def arrived(self, beat: Heartbeat, now: float) -> float:
        """Return when a heartbeat that is read at `now` would have arrived without waiting; `now` if unknown."""
        if not beat.sent_at:
            return now
        offset = now - beat.sent_at
        boot_id, least, taken_at = self._fastest.get(beat.agent_id, ("", 0.0, 0.0))
        known = boot_id == beat.boot_id
        least = min(least + (now - taken_at) * DRIFT, offset) if known else offset
        self._fastest[beat.agent_id] = (beat.boot_id, least, now)
        return now - (offset - least)

    def forget(self, before: float) -> None:
        """Drop the agents that have sent nothing since `before`."""
        for name in [name for name, (_, _, taken_at) in self._fastest.items() if taken_at < before]:
            del self._fastest[name]
