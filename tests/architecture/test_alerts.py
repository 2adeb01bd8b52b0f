"""Alert rules and dashboards against the metrics, jobs and services that they name, and against their runbooks."""

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from billing.metering.records import Outcome
from core.settings import Settings
from jobs.work import schedule
from workers.wire import ReplicaState

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "admin",
    "api",
    "billing",
    "console",
    "core",
    "gateway",
    "jobs",
    "scheduler",
    "tenants",
    "workers",
)
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
GROUPS: list[dict[str, Any]] = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
BOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
RUNBOOKS = ROOT / "docs/runbooks"
OF_PROMETHEUS = {"job", "instance", "exported_job", "le"}
WORDS = re.compile(r"\b(?:penstock|gen_ai)_[a-z_]+\b")


@cache
def metrics() -> dict[str, str]:
    """Kinds of the metrics that the packages define, by name without `_total`."""
    kinds = {"Counter": "counter", "MetricCounter": "counter", "Counts": "counter", "Gauge": "gauge"}
    kinds |= {"Histogram": "histogram", "histogram": "histogram"}
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for call in ast.walk(ast.parse(path.read_text())):
                match call:
                    case ast.Call(func=ast.Name(id=maker), args=[ast.Constant(value=str(name)), *_]) if (
                        maker in kinds
                    ):
                        found[name.removesuffix("_total")] = kinds[maker]
    return found


@cache
def labels() -> set[str]:
    """Every word that stands as a string of its own in the modules that define metrics."""
    texts = [path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {
        word for text in texts if "prometheus_client" in text for word in re.findall(r'"([a-z_]+)"', text)
    }


def exported(name: str) -> bool:
    """Whether a sample of this name is exported."""
    for ending, kind in (
        ("_total", "counter"),
        ("_bucket", "histogram"),
        ("_count", "histogram"),
        ("_sum", "histogram"),
    ):
        if name.endswith(ending):
            return metrics().get(name.removesuffix(ending)) == kind
    return metrics().get(name) == "gauge"


def expressions() -> list[tuple[str, str]]:
    """Every expression of rules and dashboards, with where it stands."""
    found = [(rule["alert"], rule["expr"]) for rule in RULES]
    for path in BOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            found += [(f"{path.stem}: {panel['title']}", each["expr"]) for each in panel.get("targets", [])]
    return found


@pytest.mark.parametrize(("where", "expression"), expressions(), ids=[where for where, _ in expressions()])
def test_expressions_name_metrics_and_labels_that_exist(where: str, expression: str) -> None:
    selected = re.findall(r"([a-z_]+)\s*(?:!=|=~|!~|=)\s*\"([^\"]*)\"", expression)
    grouped = [
        name.strip() for names in re.findall(r"by \(([^)]*)\)", expression) for name in names.split(",")
    ]
    used = {*grouped, *(name for name, _ in selected)}
    names = set(WORDS.findall(re.sub(r"\"[^\"]*\"", "", expression))) - used
    assert names or "up{" in expression
    assert not [name for name in names if not exported(name)], "no role exports such a sample"
    assert used <= labels() | OF_PROMETHEUS
    values = {"state": set(ReplicaState), "outcome": set(Outcome)}
    for name, value in selected:
        assert name not in values or set(value.split("|")) <= values[name], f"{name} is never {value}"


def test_every_alert_has_its_runbook() -> None:
    overview = (RUNBOOKS / "README.md").read_text()
    pages = set()
    for rule in RULES:
        page = re.fullmatch(
            r"\{\{ \$externalLabels\.docs \}\}/runbooks/([a-z-]+)/", rule["annotations"]["runbook_url"]
        )
        assert page, rule["alert"]
        pages.add(page[1])
        title = (RUNBOOKS / f"{page[1]}.md").read_text().partition("\n")[0]
        assert rule["alert"] in title
        assert rule["alert"] in overview
        assert rule["labels"]["severity"] in ("critical", "warning")
    assert pages == {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}


def test_every_job_is_overdue_in_time() -> None:
    allowed: dict[str, float] = {}
    for rule in RULES:
        if rule["alert"].endswith("JobOverdue"):
            [(names, seconds)] = re.findall(r"penstock\\\\\.\(([a-z_|]+)\)\"\}\) > (\d+)", rule["expr"])
            for name in names.split("|"):
                assert name not in allowed
                allowed[name] = float(seconds)
    jobs = {job.name.removeprefix("penstock."): job.every_s for job in schedule(Settings())}
    assert allowed.keys() == jobs.keys()
    for name, every_s in jobs.items():
        assert 2 * every_s < allowed[name] <= max(1200.0, 24 * every_s), name


def test_prometheus_scrapes_every_role_of_compose() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    roles = {name: each for name, each in COMPOSE["services"].items() if "penstock" in each["image"]}
    port = roles["api"]["environment"]["PENSTOCK_METRICS_PORT"]
    named = set()
    for job in config["scrape_configs"]:
        for each in job.get("static_configs", []):
            named |= {target.removesuffix(f":{port}") for target in each["targets"]}
        for each in job.get("dns_sd_configs", []):
            assert str(each["port"]) == port
            named |= set(each["names"])
    assert named == roles.keys() - {"migrate"}
    jobs = {each["command"][0] for name, each in roles.items() if name != "migrate"}
    assert {job["job_name"] for job in config["scrape_configs"]} == jobs


@pytest.mark.parametrize("path", BOARDS, ids=[path.stem for path in BOARDS])
def test_dashboards_are_whole(path: Path) -> None:
    board = json.loads(path.read_text())
    sources = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/penstock.yml").read_text())
    [source] = sources["datasources"]
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in panels:
        assert panel["datasource"]["uid"] == source["uid"]
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
