"""Output of `penstock up`: steps with spinners on a terminal, plain lines elsewhere, and the final panel."""

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
    """A step in progress."""

    def __init__(self, display: "Display", title: str, task: TaskID | None) -> None:
        self._display = display
        self._task = task
        self._title = title
        self._last = ""

    def note(self, detail: str) -> None:
        """Show a short detail on the step's progress."""
        detail = " ".join(detail.split())
        if detail == self._last:
            return
        self._last = detail
        self._display.update(self._task, self._title, detail)


class Display:
    """Progress of a start or a stop. A context manager that can be used once."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stdout, highlight=False)
        self.interactive = self.console.is_terminal
        """Whether a person reads the output as it appears."""
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            TextColumn("[dim]{task.fields[detail]}[/]", markup=True),
            TimeElapsedColumn(),
            console=self.console,
        )

    def __enter__(self) -> Self:
        """Start drawing."""
        if self.interactive:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing; the output stays on the screen."""
        if self.interactive:
            self._progress.stop()

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show `title` as in progress, and as done when the block ends without an error."""
        started = time.monotonic()
        task = self._progress.add_task(title, total=1, detail="") if self.interactive else None
        step = Step(self, title, task)
        yield step
        if task is not None:
            self._progress.update(task, completed=1)
        else:
            self.print_line(f"{title}: done in {time.monotonic() - started:.1f} s")

    def update(self, task: TaskID | None, title: str, detail: str) -> None:
        """Show the detail of a step."""
        if task is not None:
            self._progress.update(task, detail=Text(detail[:80]).markup)
        else:
            self.print_line(f"{title}: {detail}")

    def print_line(self, line: str) -> None:
        """Print one line."""
        self.console.print(line, markup=False, soft_wrap=True)

    def panel(self, title: str, rows: list[tuple[str, str]], notes: list[str], command: str) -> None:
        """Print a framed panel of (label, value) rows and notes, and `command` below it, where it can be copied."""
        if self.interactive:
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
                self.print_line(f"{name}: {value}")
            for note in notes:
                self.print_line(f"note: {note}")
        if command:
            self.print_line(command)
