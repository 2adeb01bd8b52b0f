"""What `penstock up` would start, found without starting or writing anything."""

import os
from typing import TYPE_CHECKING

from cli.added_model import engine_environment
from cli.configuration import read_settings
from cli.ports import choose_port
from cli.settings_check import problems
from core.embedded import POSTGRES_MAJOR
from core.errors import InvalidRequest
from workers import engine_install

if TYPE_CHECKING:
    from cli.stack import Options

HOST = "127.0.0.1"


def planned(options: "Options") -> list[dict[str, str]]:
    """The parts of the platform and what each would be. Raises InvalidRequest for settings that cannot be used."""
    settings, wrong = read_settings()
    wrong += problems(settings, None) if settings is not None else []
    if wrong:
        raise InvalidRequest("; ".join(wrong))
    data_dir = options.data_dir.resolve()
    ports: dict[str, int] = {}
    notes: list[str] = []
    for flag, wanted, default in (
        ("--port", options.port, 8000),
        ("--console-port", options.console_port, 8001),
    ):
        ports[flag], note = choose_port(HOST, wanted, default, flag, avoid=set(ports.values()))
        notes += [note] if note else []
    exists = (data_dir / "secrets.json").exists()
    stripe = "the account of STRIPE_API_KEY" if os.environ.get("STRIPE_API_KEY") else "SIMULATED"
    rows = {
        "data directory": f"{data_dir} ({'exists' if exists else 'is made'})",
        "PostgreSQL": _store("DATABASE_URL", f"embedded, {POSTGRES_MAJOR}"),
        "Redis": _store("REDIS_URL", "embedded"),
        "customer API": f"http://{HOST}:{ports['--port']}/v1, {_count(options.api_workers, 'process', 'es')}",
        "console": f"http://{HOST}:{ports['--console-port']}",
        "scheduler": _count(options.schedulers, "process", "es"),
        "engine": _engine(options),
        "Stripe": stripe,
        "demo organisation": "made"
        if options.demo and not exists
        else "as before"
        if options.demo
        else "none",
    }
    return [{"part": part, "would be": what} for part, what in rows.items()] + [
        {"part": "note", "would be": note} for note in notes
    ]


def _store(variable: str, otherwise: str) -> str:
    return f"that of {variable}" if os.environ.get(variable) else otherwise


def _count(number: int, noun: str, plural: str) -> str:
    return f"{number} {noun}{plural if number != 1 else ''}"


def _engine(options: "Options") -> str:
    """The engine, how many of it, its model, and whether its package is there."""
    if options.engine == "external":
        return f"external, {', '.join(options.external.urls)}"
    model = options.model or "the default model of this machine"
    named = f"{options.engine}, {_count(options.replicas, 'replica', 's')} of {model}"
    if options.engine == "sim":
        return named
    env = engine_environment(None)
    state = engine_install.status(env).state
    return f"{named}; its package in {env} is {state}{'' if state == 'installed' else ' and is fetched'}"
