"""The strategy that the options of `penstock models rollout start` give."""

from typing import Any, cast

import click
import pytest
import typer

from cli.commands.rollout_options import strategy_of
from cli.commands.rollouts import app
from core.errors import InvalidRequest
from workers.rollouts import Strategy


def strategy(*words: str) -> dict[str, Any]:
    group = cast(click.Group, typer.main.get_command(app))
    command = group.commands["start"]
    return strategy_of(command.make_context("start", ["m", "--reason", "x", *words]).params)


def test_only_what_is_given_is_in_the_strategy() -> None:
    assert strategy("--image", "77") == {}
    given = strategy("--canary-tenant", "a", "--canary-tenant", "b", "--max-surge", "0", "--bake", "2m")
    assert given == {"canary_tenants": ["a", "b"], "max_surge": 0, "bake_s": 120.0}
    with pytest.raises(InvalidRequest, match="'soon' is no time"):
        strategy("--drain", "soon")


def test_every_field_of_the_strategy_has_an_option() -> None:
    times = {"promote_after", "canary_deadline", "min_ready", "bake", "progress_deadline", "drain"}
    words = [word for name in times for word in (f"--{name.replace('_', '-')}", "1m")]
    for name in (
        set(Strategy.__struct_fields__) - {f"{each}_s" for each in times} - {"canary_tenants", "same_answer"}
    ):
        words += [f"--{name.replace('_', '-')}", "1"]
    given = strategy(*words, "--canary-tenant", "a")
    assert given.keys() == set(Strategy.__struct_fields__) - {"same_answer"}
