"""docker-compose.yml and the edge's Caddyfile against the roles that they run."""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from api.reference import document
from core.settings import Settings
from jobs.hosts import configured

ROOT = Path(__file__).resolve().parents[2]
EDGE = (ROOT / "deploy/Caddyfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
REQUIRED = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text()))
ROLES = {name: each for name, each in COMPOSE["services"].items() if "penstock" in each["image"]}


def test_every_route_of_the_api_goes_to_the_api() -> None:
    [patterns] = re.findall(r"@api path (.+)", EDGE)
    hidden = {"/webhooks/stripe", "/docs", "/openapi.json"}
    paths = {re.sub(r"\{[^}]*\}", "x", path) for path in document()["paths"]} | hidden
    assert {"/v1/chat/completions", "/llms.txt", "/readyz"} <= paths
    wrong = [path for path in paths if not any(fnmatchcase(path, pattern) for pattern in patterns.split())]
    assert not wrong, "the edge sends these to the console"


def test_the_edge_serves_what_compose_starts() -> None:
    upstreams = re.findall(r"reverse_proxy \{\$\w+:([^}]+)\}", EDGE)
    named = {address.split(":")[0] for each in upstreams for address in each.split()}
    assert named == {name for name, each in ROLES.items() if each["command"] in (["api"], ["console"])}
    assert set(COMPOSE["services"]["edge"]["depends_on"]) == named


def test_processes_of_the_api_share_no_directory() -> None:
    volumes = [tuple(each["volumes"]) for each in ROLES.values() if each["command"] == ["api"]]
    assert len(volumes) == len(set(volumes)) == 2


def test_variables_of_roles_are_settings() -> None:
    fields = {
        str(each.validation_alias or f"PENSTOCK_{name}").upper()
        for name, each in Settings.model_fields.items()
    }
    given = {name for each in ROLES.values() for name in each["environment"]}
    assert given - fields == {"HF_HOME"}


def test_what_asks_the_model_hub_has_a_bounded_place_for_it() -> None:
    for name, each in ROLES.items():
        place = each["environment"].get("HF_HOME")
        assert (place is not None) == (each["command"] in (["api"], ["console"]) or name == "agent"), name
        if name != "agent":  # its weights lie on its volume
            assert place is None or f"{place}:size=64m" in each["tmpfs"]
        assert "/tmp" in each["tmpfs"]


def test_payments_and_exports_can_be_set_where_they_are_used() -> None:
    for role, name in (
        ("api", "STRIPE_WEBHOOK_SECRET"),
        ("api-2", "STRIPE_WEBHOOK_SECRET"),
        ("jobs", "STRIPE_API_KEY"),
        ("console", "STRIPE_API_KEY"),
        ("jobs", "PENSTOCK_EXPORT_S3_SECRET"),
    ):
        assert name in ROLES[role]["environment"], (role, name)


def test_hosts_can_be_created_with_the_settings_of_providers() -> None:
    prefixes = ("fleet", "hosts_", "host_places", "host_schedulers", "digitalocean_")
    settings = {name: field for name, field in Settings.model_fields.items() if name.startswith(prefixes)}
    named = {str(each.validation_alias or f"PENSTOCK_{name}".upper()) for name, each in settings.items()}
    assert {"DIGITALOCEAN_TOKEN", "PENSTOCK_HOSTS_MAX"} <= named
    for_tests = {"PENSTOCK_DIGITALOCEAN_URL"}
    assert not named - for_tests - set(ROLES["jobs"]["environment"])
    for role in ("scheduler", "scheduler-standby"):
        assert ROLES[role]["environment"]["PENSTOCK_HOST_PLACES"] == "${PENSTOCK_HOST_PLACES:-}"
        assert "PENSTOCK_HOSTS_DRY_RUN" in ROLES[role]["environment"]
    holders = {name for name, each in ROLES.items() if "DIGITALOCEAN_TOKEN" in each["environment"]}
    assert holders == {"jobs"}, "no other role may have the token"


def test_the_defaults_of_jobs_set_no_provider_up() -> None:
    assert configured(_jobs({})) == {}


def test_files_for_digitalocean_are_mounted_where_jobs_reads_them() -> None:
    given = {
        "PENSTOCK_FLEET": "production",
        "PENSTOCK_DIGITALOCEAN_TOKEN_FILE": "./token",
        "PENSTOCK_DIGITALOCEAN_USER_DATA": "./user-data",
        "PENSTOCK_HOSTS_MAX": "3",
    }
    settings = _jobs(given)
    assert list(configured(settings)) == ["digitalocean"]
    assert settings.hosts_max == 3
    read = {
        "PENSTOCK_DIGITALOCEAN_TOKEN_FILE": settings.digitalocean_token_file,
        "PENSTOCK_DIGITALOCEAN_USER_DATA": settings.digitalocean_user_data,
    }
    for name, path in read.items():
        [secret] = [each for each in ROLES["jobs"]["secrets"] if Path("/run/secrets", each) == path]
        assert COMPOSE["secrets"][secret]["file"] == f"${{{name}:-/dev/null}}"


def _jobs(given: dict[str, str]) -> Settings:
    """The settings of `jobs` with the variables `given` in .env, beside those that every installation has."""
    environment = {**dict.fromkeys(REQUIRED, "secret"), **given}
    values = {
        name: environment.get(name) if value is None else _interpolated(value, environment)
        for name, value in ROLES["jobs"]["environment"].items()
    }
    return Settings.model_validate(
        {
            name: values[variable]
            for name, each in Settings.model_fields.items()
            if values.get(variable := str(each.validation_alias or f"PENSTOCK_{name}".upper())) is not None
        }
    )


def _interpolated(value: str, environment: dict[str, str]) -> str:
    """`value` with its variables in place, as Compose's specification has it for the three forms that the file uses."""

    def one(found: re.Match[str]) -> str:
        name, form, rest = found.groups()
        is_set = bool(environment.get(name))
        if form == ":?":
            assert is_set, name
        elif form == ":+":
            return rest if is_set else ""
        return environment[name] if is_set else rest

    return re.sub(r"\$\{(\w+)(:[-+?])([^}]*)\}", one, value)
