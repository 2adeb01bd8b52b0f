"""What an engine's memory holds while it falls asleep and wakes, as in vLLM's sleep mode. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

TAGS = frozenset({"weights", "kv_cache"})
"""Parts of the memory that vLLM frees and takes back by name."""


@dataclass(slots=True)
class SleepMode:
    """The parts that are missing, and whether the weights are the model's."""

    level: int = 0
    """1 = the weights are in host memory, 2 = they are dropped; 0 = awake."""
    garbled: bool = False
    """Whether the memory of the weights holds something else: the engine answers with nonsense."""
    _missing: set[str] = field(default_factory=set)

    @property
    def asleep(self) -> bool:
        """Whether some part is missing."""
        return bool(self._missing)

    def fall_asleep(self, level: int) -> None:
        """Free all parts; an engine that sleeps already keeps its level."""
        if not self.asleep:
            self.level, self._missing = level, set(TAGS)

    def wake(self, tags: Sequence[str], *, garbled: bool) -> None:
        """Take back the parts in `tags`, or all without any. At level 2 the memory comes back without the weights."""
        back = self._missing & (set(tags) if tags else TAGS)
        if "weights" in back and (garbled or self.level == 2):
            self.garbled = True
        self._missing -= back
        if not self.asleep:
            self.level = 0

    def reload(self, *, garbled: bool) -> None:
        """Read the weights again. Raises RuntimeError while their memory is missing."""
        if "weights" in self._missing:
            raise RuntimeError("there is no memory for the weights: wake_up?tags=weights comes first")
        self.garbled = garbled
