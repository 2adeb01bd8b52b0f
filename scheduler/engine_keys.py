"""Keys and authorities of engines on hosts that have their own, as API processes get them and nothing else does."""

from collections.abc import Collection, Iterable

from scheduler.messages import EngineKeys, HostEngines


class EngineKeyBook:
    """What each agent's engines take, with their replicas."""

    def __init__(self) -> None:
        self._of: dict[str, HostEngines] = {}

    def heard(self, agent: str, key: str, authority: bytes, replicas: Iterable[str]) -> bool:
        """An agent has these replicas with this key, which may be empty; whether anything changed."""
        names = frozenset(replicas)
        new = HostEngines(key, authority, names) if key and names else None
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
        self._of = {agent: one for agent, one in self._of.items() if not one.replicas.isdisjoint(replicas)}

    def frame(self) -> EngineKeys:
        """All of them."""
        return EngineKeys(list(self._of.values()))
