"""Writes a comparison's rows to disk as they arrive, so that an interrupted comparison can resume."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import InvalidRequest


class Journal:
    """A file of JSON lines: first the comparison's identity, then rows. Only one process may write it."""

    def __init__(self, path: Path, subject: Mapping[str, Any], *, resume: bool) -> None:
        """Begin a journal or, with `resume`, continue the one at `path` if it exists.

        Raises InvalidRequest when that journal belongs to another comparison.
        """
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self.notes: dict[str, Any] = {}
        """Findings that are expensive to repeat, by name."""
        subject = json.loads(json.dumps(subject))
        if resume and path.exists():
            self._read(subject)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"subject": subject}) + "\n")

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows."""
        self._append([{"row": row} for row in rows])
        self.rows += [dict(row) for row in rows]

    def note(self, name: str, value: Any) -> None:
        """Append a finding."""
        self._append([{"note": name, "value": value}])
        self.notes[name] = value

    def _append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        with self.path.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))

    def _read(self, subject: Mapping[str, Any]) -> None:
        whole, _, cut = self.path.read_text().rpartition("\n")
        try:
            lines = [json.loads(line) for line in whole.split("\n") if line]
        except ValueError:
            lines = []  # not a journal
        if not lines or not isinstance(lines[0], dict) or lines[0].get("subject") != subject:
            raise InvalidRequest(
                f"{self.path} holds another comparison; leave out --resume to begin anew", param="resume"
            )
        if cut:  # the process died within a line
            self.path.write_text(whole + "\n")
        for line in lines[1:]:
            if "row" in line:
                self.rows.append(line["row"])
            else:
                self.notes[line["note"]] = line["value"]
