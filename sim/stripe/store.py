"""Stores all state (objects by kind, counters, timers) in memory and optionally in a journal file."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from sim.stripe.errors import Obj

COMPACT_BYTES = 16 * 2**20
"""Least growth in bytes after which the journal is rewritten; it must also exceed four times the last full size."""


class Store:
    """Objects in order of creation. Every change is one `put` or `drop`, which the journal records.

    The journal has a JSON line `[[kind, id, object or null], ...]` for each `flush`. A line holds all changes
    of a request; an incomplete line is ignored as a whole. At each start, and after much growth, the file is
    rewritten without replaced values.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._kinds: dict[str, dict[str, Obj]] = {}
        self._touched: dict[tuple[str, str], None] = {}
        self._path = path
        self._file: IO[bytes] | None = None
        self._size = self._grown = 0
        if path is not None:
            self._load(path)

    def put(self, kind: str, id: str, value: Obj) -> Obj:
        """Store `value`, a new object or a changed one, and return it."""
        self._kinds.setdefault(kind, {})[id] = value
        self._touched[kind, id] = None
        return value

    def drop(self, kind: str, id: str) -> None:
        """Delete an object."""
        if self._kinds.get(kind, {}).pop(id, None) is not None:
            self._touched[kind, id] = None

    def get(self, kind: str, id: str) -> Obj | None:
        """Return the object itself, not a copy; None when there is none."""
        return self._kinds.get(kind, {}).get(id)

    def all(self, kind: str) -> list[Obj]:
        """Return all objects of a kind, oldest first."""
        return list(self._kinds.get(kind, {}).values())

    def kind(self, kind: str) -> Mapping[str, Obj]:
        """Return all objects of a kind by id, oldest first."""
        return self._kinds.get(kind, {})

    def newest(self, kind: str) -> Iterator[Obj]:
        """Yield all objects of a kind, newest first."""
        return reversed(self._kinds.get(kind, {}).values())

    def count(self, name: str) -> int:
        """Increment a counter and return its new value, from 1."""
        row = self.get("counter", name) or {"value": 0}
        row["value"] += 1
        self.put("counter", name, row)
        return int(row["value"])

    def counts(self) -> dict[str, int]:
        """Return the number of objects by kind."""
        return {kind: len(objects) for kind, objects in sorted(self._kinds.items()) if objects}

    def clear(self) -> None:
        """Delete everything."""
        for kind, objects in self._kinds.items():
            self._touched |= {(kind, id): None for id in objects}
        self._kinds.clear()

    def dump(self) -> dict[str, dict[str, Obj]]:
        """Return a copy of everything, for comparisons."""
        return {kind: dict(objects) for kind, objects in self._kinds.items() if objects}

    # The journal

    def flush(self) -> None:
        """Append the changes since the last flush to the journal."""
        touched, self._touched = self._touched, {}
        if self._file is None or not touched:
            return
        changes = [[kind, id, self.get(kind, id)] for kind, id in touched]
        self._grown += self._file.write(msgspec.json.encode(changes) + b"\n")
        self._file.flush()
        if self._path is not None and self._grown > max(COMPACT_BYTES, 4 * self._size):
            self._file.close()
            self._rewrite(self._path)

    def close(self) -> None:
        """Flush and close the journal."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _load(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines():
                try:
                    changes = msgspec.json.decode(line, type=list[tuple[str, str, dict[str, Any] | None]])
                except msgspec.MsgspecError:
                    break
                for change in changes:
                    self._replay(*change)
        self._rewrite(path)

    def _replay(self, kind: str, id: str, value: Any) -> None:
        if value is None:
            self._kinds.get(kind, {}).pop(id, None)
        else:
            self._kinds.setdefault(kind, {})[id] = value

    def _rewrite(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        opener = os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(opener, "wb") as file:
            for kind, objects in self._kinds.items():
                for id, value in objects.items():
                    file.write(msgspec.json.encode([[kind, id, value]]) + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self._size, self._grown = file.tell(), 0
        fresh.replace(path)
        self._file = path.open("ab")
