"""Where settings come from: the environment, files that hold one secret each, and a TOML file, in this order.

The entry point merges them into the environment once. Every command, role and child process reads settings there.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping, MutableMapping
from enum import StrEnum
from pathlib import Path

import msgspec
from pydantic import SecretStr, ValidationError

from core.errors import InvalidRequest
from core.settings import Settings

CONFIG = "PENSTOCK_CONFIG"
"""The variable that names the TOML file."""

_PREFIX = "PENSTOCK_"
_FILE = "_FILE"
_MAX_BYTES = 1 << 20
"""Largest configuration file or secret file that is read."""

_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?$")
"""Names of the variables that Kubernetes makes for each service of a namespace, where pods do not switch them off."""

_OTHER_NAMES = frozenset(
    {
        CONFIG,
        "PENSTOCK_ADMIN_TOKEN",  # who an administrative command acts for
        "PENSTOCK_API_KEY",  # of a customer, in the examples of the documents
        "PENSTOCK_TOKEN",  # of a member, likewise
        "PENSTOCK_WAL_ARCHIVE",  # an option of `penstock up`
        "PENSTOCK_STRIPE_SIM_KEY",  # the simulated Stripe's
        "PENSTOCK_SIM_FAILPOINTS",  # the simulated engine's
        "PENSTOCK_SIM_VERSION_FAILPOINTS",
        "PENSTOCK_ROOT",  # of the script of a host's first start
        "PENSTOCK_COMMAND",
        "PENSTOCK_IMAGE",  # of docker-compose.yml
        "PENSTOCK_ENGINE_IMAGE",
        "PENSTOCK_DOMAIN",
        "PENSTOCK_API_UPSTREAMS",  # of the Caddyfile
        "PENSTOCK_CONSOLE_UPSTREAM",
        "PENSTOCK_SCREENSHOTS",  # of the tests
        "PENSTOCK_PLAY_SEEDS",
        "PENSTOCK_GPU_SWEEP",
    }
)
"""Variables with our prefix that are no settings of a role."""


class Source(StrEnum):
    """Where the value of a setting comes from."""

    DEFAULT = "default"
    ENVIRONMENT = "environment"
    SECRET_FILE = "secret file"  # noqa: S105 - the name of a source
    CONFIG_FILE = "configuration file"


class Configuration(msgspec.Struct, frozen=True):
    """What to set and to remove in the environment, so that it has the values of all sources."""

    values: dict[str, str]
    """By variable: values of files, which the environment does not have."""
    consumed: tuple[str, ...]
    """Variables that name files which have been read. Children must not read them again: what a role is not given on
    purpose would come back."""
    sources: dict[str, Source]
    """By variable; those with their default are left out."""

    def apply(self, environ: MutableMapping[str, str]) -> None:
        """Put the values into `environ`, such as os.environ."""
        environ.update(self.values)
        for name in self.consumed:
            del environ[name]


def variables() -> dict[str, str]:
    """The environment variable of each setting, by the setting's name in `Settings` and in the file."""
    return {
        name: str(field.validation_alias or f"{_PREFIX}{name.upper()}")
        for name, field in Settings.model_fields.items()
    }


def secret_variables() -> frozenset[str]:
    """Variables that may stand in a file of their own: secrets, and the URLs of servers, which contain passwords."""
    secret = {name for name, field in Settings.model_fields.items() if field.annotation is SecretStr}
    named = variables()
    return frozenset(named[name] for name in secret | {"database_url", "redis_url"}) | {
        "PENSTOCK_ADMIN_TOKEN"
    }


def read_configuration(
    environ: Mapping[str, str], config: Path | None = None, *, strict: bool = True
) -> Configuration:
    """Values for all settings that `environ` leaves out, from its `..._FILE` variables and from the TOML file `config`,
    or that of PENSTOCK_CONFIG.

    An empty variable counts as left out: compose files pass those through. Raises InvalidRequest for names that are no
    settings (of variables only when `strict`), files that cannot be read, and a secret that is given twice.
    """
    unknown = unknown_names(environ)
    if unknown and strict:
        raise InvalidRequest(unknown[0])
    secrets, consumed = _secret_files(environ)
    given = {name for name, value in environ.items() if value}
    path = config or (Path(environ[CONFIG]) if environ.get(CONFIG) else None)
    filed = _config_file(path) if path is not None else {}
    values = {name: value for name, value in filed.items() if name not in given and name not in secrets}
    sources = {name: Source.ENVIRONMENT for name in variables().values() if name in given}
    sources |= dict.fromkeys(values, Source.CONFIG_FILE) | dict.fromkeys(secrets, Source.SECRET_FILE)
    if CONFIG in environ:
        consumed.append(CONFIG)
    return Configuration(values | secrets, tuple(consumed), sources)


def unknown_names(environ: Mapping[str, str]) -> list[str]:
    """What is to be said of each variable with our prefix that nothing reads, most often a typing error."""
    settings = set(variables().values()) | {name + _FILE for name in secret_variables()}
    found = []
    for name in sorted(environ):
        if not name.startswith(_PREFIX) or _is_service_link(name, environ[name]):
            continue
        if name not in settings and name not in _OTHER_NAMES:
            near = _nearest(name, settings)
            found.append(f"{name} is not a setting{near} (`penstock config list` lists all)")
    return found


def _is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes set the variable in a pod, for a service whose name begins with `penstock`."""
    return bool(_SERVICE_LINK.search(name)) or ("_PORT" in name and value.startswith(("tcp://", "udp://")))


def _nearest(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, 1, 0.75)
    return f"; did you mean {near[0]}?" if near else ""


def _secret_files(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The content of each `..._FILE` variable's file by the variable that it stands for, and these names."""
    found: dict[str, str] = {}
    consumed: list[str] = []
    for variable in sorted(secret_variables()):
        name = variable + _FILE
        if not environ.get(name):
            continue
        if environ.get(variable):
            raise InvalidRequest(f"{variable} and {name} are both set; unset one of them")
        found[variable] = _read(Path(environ[name]), name).strip()
        if not found[variable]:
            raise InvalidRequest(f"{name}: {environ[name]} is empty; it must contain the value of {variable}")
        consumed.append(name)
    return found, consumed


def _config_file(path: Path) -> dict[str, str]:
    """The settings of a TOML file, by variable and written as in the environment."""
    try:
        document = tomllib.loads(_read(path, "the configuration file"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{path} is not valid TOML: {error}") from None
    named = variables()
    found = {}
    for name, value in document.items():
        if name not in named:
            raise InvalidRequest(f"{path}: {name} is not a setting{_nearest(name, set(named))}")
        found[named[name]] = _as_text(value, f"{path}: {name}")
    return found


def _as_text(value: object, where: str) -> str:
    """A TOML value as the environment would have it; an array is a list separated by commas."""
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case list() if all(isinstance(item, str) and "," not in item for item in value):
            return ",".join(value)
    raise InvalidRequest(
        f"{where} must be a string, a number, a boolean, or an array of strings without commas"
    )


def _read(path: Path, what: str) -> str:
    """The text of a file of at most _MAX_BYTES. Raises InvalidRequest."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise InvalidRequest(f"{what}: {path} is larger than {_MAX_BYTES} bytes")
        return content.decode()
    except OSError as error:
        raise InvalidRequest(f"{what}: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{what}: {path} is not text in UTF-8") from None


def read_settings() -> tuple[Settings | None, list[str]]:
    """The settings of the environment, and a line for each value that is not valid; None = some are not."""
    try:
        return Settings(), []
    except ValidationError as error:
        return None, [_line(each["loc"], each["msg"]) for each in error.errors(include_input=False)]


def _line(place: tuple[int | str, ...], message: str) -> str:
    name = str(place[0]) if place else "settings"
    return f"{variables().get(name, name)}: {message}"
