"""`penstock models alias|deprecate|retire|replace`: what names stand for, and how models end."""

from functools import partial
from typing import Annotated

import typer

from admin import model_life, models
from cli.context import AsJson, DataDir, perform

app = typer.Typer()

Name = Annotated[str, typer.Argument(help="A model's name.")]
Note = Annotated[str | None, typer.Option("--note", help="What customers should do, or why.")]


@app.command("alias")
def set_alias(
    name: Annotated[str, typer.Argument(help="The alias; a new name, an alias, or a retired model.")],
    target: Annotated[str, typer.Argument(help="The model it stands for.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Let a name stand for a model. Answers, usage and prices are those of the model.

    Example: penstock models alias llama-latest llama-3.3-70b
    """
    perform(partial(models.set_alias, name=name, target=target), data_dir, as_json)


@app.command("deprecate")
def deprecate_model(
    name: Name,
    retires_at: Annotated[
        str | None,
        typer.Option("--retire-at", help="When it retires: a date or instant in UTC; none = no date."),
    ] = None,
    replacement: Annotated[
        str | None,
        typer.Option("--replacement", help="A model to use instead; none = none. It is only told."),
    ] = None,
    note: Note = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Tell the users of a model that it goes, and retire it at a date. Until then it answers. What is not given stays.

    Example: penstock models deprecate llama-3.3-70b --retire-at 2027-03-01 --replacement qwen3.5-397b
    """
    act = partial(
        model_life.deprecate_model, name=name, retires_at=retires_at, replacement=replacement, note=note
    )
    perform(act, data_dir, as_json)


@app.command("retire")
def retire_model(name: Name, note: Note = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Take a model or an alias out of service now: requests for it get 404 model_retired.

    Example: penstock models retire llama-3.3-70b
    """
    perform(partial(model_life.retire_model, name=name, note=note), data_dir, as_json)


@app.command("replace")
def replace_model(
    name: Name,
    replacement: Annotated[str, typer.Argument(help="The model that answers for it.")],
    retires_at: Annotated[
        str | None, typer.Option("--at", help="From when: a date or instant in UTC; default: now.")
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Let it answer though it lacks abilities or context.")
    ] = False,
    note: Note = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Retire a model now or at a date, and let another answer requests for it from then on, at its own price.

    Example: penstock models replace llama-3.3-70b qwen3.5-397b --at 2027-03-01
    """
    act = partial(
        model_life.replace_model,
        name=name,
        replacement=replacement,
        retires_at=retires_at,
        note=note,
        accept_loss=accept_loss,
    )
    perform(act, data_dir, as_json)
