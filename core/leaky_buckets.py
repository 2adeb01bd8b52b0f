"""Leaky buckets of many subjects in one process, in bounded memory."""

from collections.abc import Callable, Hashable

MAX_SUBJECTS = 50_000
"""Buckets kept; the one that was filled longest ago is dropped."""


class LeakyBuckets:
    """How much each subject has used, drained at `per_min` a minute."""

    def __init__(self, per_min: int, now: Callable[[], float], max_subjects: int = MAX_SUBJECTS) -> None:
        """`now` returns monotonic seconds."""
        self.per_min = per_min
        self._now = now
        self._max_subjects = max_subjects
        self._levels: dict[Hashable, tuple[float, float]] = {}
        """Level and the instant that it is of, by subject; the subject that was filled last is the last one."""

    def __len__(self) -> int:
        return len(self._levels)

    def level(self, subject: Hashable) -> float:
        """The level of a subject now; an empty bucket is dropped."""
        found = self._levels.get(subject)
        if found is None:
            return 0.0
        level = found[0] - (self._now() - found[1]) * self.per_min / 60
        if level <= 0:
            del self._levels[subject]
            return 0.0
        return level

    def fill(self, subject: Hashable) -> float:
        """Add one to the level of a subject; returns it."""
        level = self.level(subject) + 1.0
        self._levels.pop(subject, None)
        if len(self._levels) >= self._max_subjects:
            del self._levels[next(iter(self._levels))]
        self._levels[subject] = (level, self._now())
        return level

    def wait_s(self, level: float) -> float:
        """Seconds until one more fits below `per_min`, from a level."""
        return max(0.0, level + 1 - self.per_min) * 60 / self.per_min
