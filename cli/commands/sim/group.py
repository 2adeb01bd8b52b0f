"""`penstock sim`: simulations of a cluster. Each subcommand has its own file."""

from importlib import import_module

import typer

app = typer.Typer(
    help="Simulate a pool: run a workload, compare routing policies, fit and validate the model, replay traffic.",
    no_args_is_help=True,
)

_PARTS = ("run", "compare", "validate", "fit", "replay", "autoscale", "scenario", "tune")

for _part in _PARTS:
    import_module(f"cli.commands.sim.{_part}").register(app)
