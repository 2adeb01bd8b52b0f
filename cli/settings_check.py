"""What is wrong with settings before anything starts: values that contradict or cannot be parsed, what is missing."""

from collections.abc import Callable, Iterator
from pathlib import Path

from billing.notifications.mail import parse_smtp
from cli.configuration import variables
from cli.required_settings import Role, missing
from cli.server_errors import database_url, redis_url
from core.client_address import ClientAddresses
from core.errors import InvalidRequest, PenstockError
from core.public_addresses import parse_hosts
from core.settings import Settings
from core.syslog import parse_receiver
from workers.acting.places import ANY, parse_places
from workers.catalog import load_catalog
from workers.engine_models import engine_urls

_FILES = (
    "scheduler_ca",
    "scheduler_cert",
    "scheduler_key",
    "digitalocean_token_file",
    "digitalocean_user_data",
)
"""Settings that name files which must exist; "." = none."""


def problems(settings: Settings, role: Role | None) -> list[str]:
    """Every value that a role would refuse when it starts, and what `role` misses; None = no role in particular."""
    checks: list[tuple[str, Callable[[], object]]] = [
        ("scheduler_addresses", lambda: settings.scheduler_addresses),
        ("schedulers_for_hosts", lambda: settings.schedulers_for_hosts),
        ("host_places", lambda: _known_kinds(settings)),
        ("trusted_proxies", lambda: ClientAddresses(settings.trusted_proxies)),
        ("webhook_allow_hosts", lambda: parse_hosts(settings.webhook_allow_hosts)),
        ("oidc_allow_hosts", lambda: parse_hosts(settings.oidc_allow_hosts)),
        ("smtp_url", lambda: parse_smtp(settings.smtp_url.get_secret_value(), settings.smtp_from)),
        (
            "audit_syslog_url",
            lambda: not settings.audit_syslog_url or parse_receiver(settings.audit_syslog_url),
        ),
        ("engine_url", lambda: settings.engine != "external" or engine_urls(settings.engine_url)),
        ("database_url", lambda: not settings.database_url or database_url(settings.database_url)),
        ("redis_url", lambda: not settings.redis_url or redis_url(settings.redis_url)),
    ]
    found = [problem for name, check in checks if (problem := _problem(name, check))]
    found += _absent_files(settings)
    if role is not None and (what := missing(role, settings)):
        found.append(what)
    return found


def _problem(name: str, check: Callable[[], object]) -> str | None:
    try:
        check()
    except (PenstockError, ValueError) as error:
        variable = variables().get(name, name)
        message = error.message if isinstance(error, PenstockError) else str(error)
        names_one = "PENSTOCK_" in message or variable in message
        return message if names_one else f"{variable}: {message}"
    return None


def _known_kinds(settings: Settings) -> None:
    """Raise InvalidRequest for places of a kind that the catalog does not have."""
    kinds = load_catalog().hosts
    for kind in parse_places(settings.host_places).by_kind:
        if kind != ANY and kind not in kinds:
            raise InvalidRequest(f"{kind} is no kind of host; the catalog has {', '.join(sorted(kinds))}")


def _absent_files(settings: Settings) -> Iterator[str]:
    for name in _FILES:
        path: Path = getattr(settings, name)
        if path != Path() and not path.is_file():
            yield f"{variables()[name]}: there is no file {path}"
