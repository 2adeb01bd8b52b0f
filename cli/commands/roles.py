"""The platform's roles, each one process, and the migration of the database, which must run first."""

import asyncio
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from cli.configuration import read_settings
from cli.required_settings import Role, missing
from cli.server_errors import database_url, redis_url, server_errors
from core.directory_lock import hold_alone
from core.errors import InvalidRequest
from core.logs import setup_logging
from core.settings import Settings
from core.telemetry import setup_tracing

app = typer.Typer()

_MODULES: dict[Role, str] = {
    "api": "api.serve",
    "scheduler": "scheduler.serve",
    "agent": "workers.agent",
    "jobs": "jobs.serve",
    "console": "console.serve",
}
Host = Annotated[str | None, typer.Option("--host", help="Address to bind [PENSTOCK_HOST].")]
Port = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Port to bind.")]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", min=0, max=65535, help="Internal port of /metrics and /healthz; 0 = any."),
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="State of this machine [PENSTOCK_DATA_DIR].")
]


def load_settings(overrides: dict[str, object] | None = None) -> Settings:
    """Settings from the environment; `overrides` from the command line that are not None take precedence.

    Raises InvalidRequest naming the invalid variable.
    """
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    settings, invalid = read_settings()
    if settings is None:
        raise InvalidRequest(invalid[0])
    return settings.model_copy(update=given)


def run_role(role: Role, settings: Settings) -> int:
    """Run `role` until SIGTERM or SIGINT; returns its exit status. Raises InvalidRequest when a setting is missing."""
    if (what := missing(role, settings)) is not None:
        raise InvalidRequest(what)
    if settings.database_url:
        database_url(settings.database_url)
    if settings.redis_url:
        redis_url(settings.redis_url)
    if settings.supervisor_lock >= 0:
        hold_alone(settings.supervisor_lock)
    setup_logging(role, settings.log_level)
    setup_tracing(role, settings)
    return _main_of(role)(settings)


def _main_of(role: Role) -> Callable[[Settings], int]:
    main: Callable[..., int] = import_module(_MODULES[role]).main
    if role == "api":
        from cli.commands.sim.engine import simulated_tokenizer

        return partial(main, simulated_tokenizer=simulated_tokenizer())
    return main


def _run(role: Role, **overrides: object) -> None:
    code = run_role(role, load_settings(overrides))
    sys.stdout.flush()
    if code:
        raise typer.Exit(code)


@app.command()
def api(
    host: Host = None,
    port: Port = None,
    drain_s: Annotated[
        int | None,
        typer.Option("--drain-s", min=0, help="Seconds for open answers after SIGTERM [PENSTOCK_DRAIN_S]."),
    ] = None,
    metrics_port: MetricsPort = None,
    data_dir: DataDir = None,
) -> None:
    """Serve the customer API and admin REST (one process; start several for more cores).

    Example: DATABASE_URL=postgresql://... REDIS_URL=redis://... penstock api --port 8000
    """
    _run("api", host=host, port=port, drain_s=drain_s, metrics_port=metrics_port, data_dir=data_dir)


@app.command()
def scheduler(
    host: Annotated[
        str | None, typer.Option("--host", help="Address to bind [PENSTOCK_SCHEDULER_HOST].")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port of agents and API processes.")] = None,
    metrics_port: MetricsPort = None,
    data_dir: DataDir = None,
) -> None:
    """Place requests on replicas (one per platform, and others that stand by).

    Example: DATABASE_URL=postgresql://... penstock scheduler --port 8010
    """
    _run("scheduler", scheduler_host=host, scheduler_port=port, metrics_port=metrics_port, data_dir=data_dir)


@app.command()
def agent(
    engine: Annotated[str | None, typer.Option("--engine", help="auto | vllm | sim | external.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model to serve.")] = None,
    replicas: Annotated[int | None, typer.Option("--replicas", min=1, help="Replicas on this host.")] = None,
    metrics_port: MetricsPort = None,
    data_dir: DataDir = None,
) -> None:
    """Start and watch the engines of this host (one per GPU host).

    Example: PENSTOCK_SCHEDULERS=10.0.0.2:8010,10.0.0.3:8010 penstock agent --engine vllm
    """
    _run(
        "agent",
        engine=engine,
        model=model,
        replicas=replicas,
        metrics_port=metrics_port,
        data_dir=data_dir,
    )


@app.command()
def jobs(metrics_port: MetricsPort = None, data_dir: DataDir = None) -> None:
    """Run background jobs: Celery worker and beat.

    Example: DATABASE_URL=postgresql://... REDIS_URL=redis://... penstock jobs
    """
    _run("jobs", metrics_port=metrics_port, data_dir=data_dir)


@app.command()
def console(
    host: Host = None, port: Port = None, metrics_port: MetricsPort = None, data_dir: DataDir = None
) -> None:
    """Serve the web console.

    Example: DATABASE_URL=postgresql://... REDIS_URL=redis://... penstock console --port 8001
    """
    _run("console", host=host, console_port=port, metrics_port=metrics_port, data_dir=data_dir)


@app.command()
def migrate() -> None:
    """Bring the database of DATABASE_URL to the newest schema and offer the catalog's models at their list prices.

    What is there stays as it is: models, prices, and a schema that is the newest already.

    Example: DATABASE_URL=postgresql://... penstock migrate
    """
    url = os.environ.get("DATABASE_URL", "")
    if not url:
        raise InvalidRequest("DATABASE_URL is not set; `penstock migrate` needs it")
    with server_errors():
        warnings = asyncio.run(_migrate(database_url(url), load_settings()))
    for warning in warnings:
        typer.echo(f"penstock: warning: {warning}", err=True)
    typer.echo("the schema is up to date, the models of the catalog are offered")


async def _migrate(url: str, settings: Settings) -> list[str]:
    from admin.actor import system_actor  # the roles start faster without these
    from cli.bootstrap import offer_models, store_rules
    from core.db import Database
    from core.services import migrate as migrate_database
    from workers.catalog import load_catalog

    await migrate_database(url)
    database = Database(url, name="penstock-migrate", pool_size=1)
    try:
        actor = system_actor("penstock migrate")
        below_cost = await offer_models(database, actor, load_catalog())
        return below_cost + await store_rules(database, actor, settings)
    finally:
        await database.close()
