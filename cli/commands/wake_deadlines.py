"""`penstock models wake-deadlines` and `set-wake-deadline`: how long requests wait while a replica wakes."""

from functools import partial
from typing import Annotated

import typer

from admin import wake_deadlines
from cli.context import AsJson, DataDir, perform
from core.errors import InvalidRequest

app = typer.Typer()

DEFAULT = "default"
"""In place of seconds: as the catalog or the settings say."""


@app.command("wake-deadlines")
def list_wake_deadlines(
    name: Annotated[str | None, typer.Argument(help="A model's name; without it, all models.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """How long requests for a model wait while a replica wakes or its host is created, and who set that.

    Example: penstock models wake-deadlines llama-3.3-70b --json
    """
    list_them = partial(wake_deadlines.list_wake_deadlines, model=name)
    perform(list_them, data_dir, as_json, title="Wake deadlines")


@app.command("set-wake-deadline")
def set_wake_deadline(
    name: Annotated[str, typer.Argument(help="A model's name.")],
    seconds: Annotated[
        str, typer.Argument(help="0 to 600 seconds, or default = as the catalog or the settings say.")
    ],
    reason: Annotated[str | None, typer.Option("--reason", help="Why, for the audit log.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Let requests for a model wait longer or shorter while a replica wakes; API processes follow within seconds.

    Example: penstock models set-wake-deadline llama-3.3-70b 300 --reason "hosts are created in four minutes"
    """
    change = partial(
        wake_deadlines.set_wake_deadline, model=name, wake_deadline_s=_seconds(seconds), reason=reason
    )
    perform(change, data_dir, as_json)


def _seconds(given: str) -> float | None:
    if given == DEFAULT:
        return None
    try:
        return float(given)
    except ValueError:
        raise InvalidRequest(f"{given[:20]!r} is neither seconds nor `{DEFAULT}`", param="seconds") from None
