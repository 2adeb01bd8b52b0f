"""docker-compose.yml and the edge's Caddyfile against the roles that they run."""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from api.reference import document
from core.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
EDGE = (ROOT / "deploy/Caddyfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
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
    assert given - fields == {"HF_HOME", "FORWARDED_ALLOW_IPS"}


def test_payments_and_exports_can_be_set_where_they_are_used() -> None:
    for role, name in (
        ("api", "STRIPE_WEBHOOK_SECRET"),
        ("api-2", "STRIPE_WEBHOOK_SECRET"),
        ("jobs", "STRIPE_API_KEY"),
        ("console", "STRIPE_API_KEY"),
        ("jobs", "PENSTOCK_EXPORT_S3_SECRET"),
    ):
        assert name in ROLES[role]["environment"], (role, name)
