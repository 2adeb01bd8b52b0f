"""What `penstock up` shows: steps with spinners on a terminal, plain lines elsewhere, and the panel at the end."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.panel import Panel
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text


class Step:
    """One thing that is under way."""

    def __init__(self, display: "Display", title: str, task: TaskID | None) -> None:
        self._display = display
        self._task = task
        self._title = title
        self._last = ""

    def note(self, detail: str) -> None:
        """Say how it goes, in a few words."""
        detail = " ".join(detail.split())
        if detail == self._last:
            return
        self._last = detail
        self._display.update(self._task, self._title, detail)


class Display:
    """Progress of a start or a stop. Usable as a context manager, once."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stdout, highlight=False)
        self._fancy = self.console.is_terminal
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            TextColumn("[dim]{task.fields[detail]}[/]", markup=True),
            TimeElapsedColumn(),
            console=self.console,
        )

    def __enter__(self) -> Self:
        """Begin to draw."""
        if self._fancy:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave what was drawn on the screen."""
        if self._fancy:
            self._progress.stop()

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show `title` as under way, and as done when the block ends without an error."""
        started = time.monotonic()
        task = self._progress.add_task(title, total=1, detail="") if self._fancy else None
        step = Step(self, title, task)
        yield step
        if task is not None:
            self._progress.update(task, completed=1)
        else:
            self.say(f"{title}: done in {time.monotonic() - started:.1f} s")

    def update(self, task: TaskID | None, title: str, detail: str) -> None:
        """Show the detail of a step."""
        if task is not None:
            self._progress.update(task, detail=Text(detail[:80]).markup)
        else:
            self.say(f"{title}: {detail}")

    def say(self, line: str) -> None:
        """One plain line."""
        self.console.print(line, markup=False, soft_wrap=True)

    def panel(self, title: str, rows: list[tuple[str, str]], notes: list[str], command: str) -> None:
        """The facts a person needs now; `command` stands outside of the frame so that it can be copied."""
        if self._fancy:
            grid = Table.grid(padding=(0, 2))
            grid.add_column(style="bold")
            grid.add_column(overflow="fold")
            for name, value in rows:
                grid.add_row(name, Text(value))
            for note in notes:
                grid.add_row("", Text(note, style="yellow"))
            self.console.print(Panel(grid, title=title, border_style="green", expand=False))
        else:
            for name, value in rows:
                self.say(f"{name}: {value}")
            for note in notes:
                self.say(f"note: {note}")
        if command:
            self.say(command)
