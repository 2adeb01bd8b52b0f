"""The list of published results, docs/results/README.md."""

from collections.abc import Mapping
from pathlib import Path


def enlist(
    docs: Path, page: str, title: str, shows: str, command: str, conditions: Mapping[str, str]
) -> Path:
    """Add or replace the line of a page in the list; `conditions` has `date` and `commit`. Returns the list's path.

    Raises ValueError when the list has no table.
    """
    path = docs / "results" / "README.md"
    link = f"[{title}]({page})"
    line = f"| {link} | {shows} | `{command}` | {conditions['date'][:10]} | {conditions['commit']} |"
    lines = [each for each in path.read_text().splitlines() if not each.startswith(f"| {link} |")]
    last = max((number for number, each in enumerate(lines) if each.startswith("| [")), default=-1)
    if last < 0:
        raise ValueError(f"{path} has no table of results")
    path.write_text("\n".join([*lines[: last + 1], line, *lines[last + 1 :]]) + "\n")
    return path
