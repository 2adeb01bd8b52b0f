"""Keys of the engines of hosts that have keys of their own, as API processes get them and nothing else does."""

from collections.abc import Collection, Iterable

from scheduler.messages import EngineKeys


class EngineKeyBook:
    """The key of each agent's engines, with their replicas."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[str, frozenset[str]]] = {}

    def heard(self, agent: str, key: str, replicas: Iterable[str]) -> bool:
        """An agent has these replicas with this key, which may be empty; whether anything changed."""
        names = frozenset(replicas)
        new = (key, names) if key and names else None
        if self._of.get(agent) == new:
            return False
        if new is None:
            del self._of[agent]
        else:
            self._of[agent] = new
        return True

    def keep(self, replicas: Collection[str]) -> None:
        """Forget the keys of agents that have none of these replicas any more.

        Replicas outlive the connection of their agent for a while, and a client may connect meanwhile.
        """
        self._of = {agent: one for agent, one in self._of.items() if not one[1].isdisjoint(replicas)}

    def frame(self) -> EngineKeys:
        """All keys by replica."""
        return EngineKeys({name: key for key, names in self._of.values() for name in names})
