"""The Helm chart: what it renders is valid for Kubernetes, and runs the roles as docker-compose.yml does."""

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import SecretStr

from api.reference import document
from cli.required_settings import REQUIRED
from core.settings import Settings
from tests.support.chart import AVAILABLE, CHART, Refused, pods, render, render_files, variables
from workers.catalog import load_catalog

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="Helm's SDK has no wheel for this platform")

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = re.findall(r"\d+\.\d+", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])
OLDEST, NEWEST = VERSIONS[0], f"1.{int(VERSIONS[1].split('.')[1]) - 1}"
POOLS = [
    {
        "name": "h100x8",
        "hostKind": "gpu-h100x8-640gb",
        "gpus": 8,
        "model": "llama-3.3-70b",
        "nodeSelector": {"doks.digitalocean.com/gpu-model": "h100"},
    },
    {
        "name": "b300",
        "hostKind": "gpu-b300x8-2304gb-contracted",
        "gpus": 8,
        "model": "deepseek-v3.1",
        "profile": "tp8",
        "nodeSelector": {"pool": "b300"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "runtimeClassName": "nvidia",
        "updateStrategy": "RollingUpdate",
        "hostPath": "",
        "settings": {"NCCL_DEBUG": "WARN"},
        "resources": {"requests": {"cpu": "16"}, "limits": {"memory": "512Gi"}},
    },
    {"name": "sim", "engine": "sim", "replicas": 2, "nodeSelector": {"pool": "cpu"}},
]
MINIMAL: dict[str, Any] = {
    "api": {"replicas": 1},
    "scheduler": {"replicas": 1},
    "console": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
}
FULL: dict[str, Any] = {
    "image": {"repository": "registry.example.com/penstock", "tag": "2026.11"},
    "imagePullSecrets": [{"name": "registry"}],
    "existingSecret": "credentials",
    "publicUrl": "https://llm.example.com",
    "settings": {"PENSTOCK_REGION": "nyc2", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://traces:4318"},
    "migrate": {"settings": {"PENSTOCK_APPROVAL_LIMIT_USD": "500"}},
    "api": {
        "replicas": 3,
        "drainSeconds": 300,
        "storage": {"size": "50Gi", "storageClassName": "fast"},
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "settings": {"PENSTOCK_TRUSTED_PROXIES": ""},
    },
    "jobs": {
        "settings": {"PENSTOCK_FLEET": "production"},
        "storage": {"size": "1Ti", "storageClassName": "slow"},
    },
    "pools": POOLS,
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tls"},
    "networkPolicy": {
        "fromEdge": [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}
        ],
        "fromMonitoring": [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        ],
        "fromAgents": [{"ipBlock": {"cidr": "10.20.0.0/16"}}],
    },
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}
SETS: dict[str, dict[str, Any]] = {"default": {}, "minimal": MINIMAL, "full": FULL}
SETTINGS = {
    str(each.validation_alias or f"PENSTOCK_{name}").upper(): each
    for name, each in Settings.model_fields.items()
}
SECRETS = {name for name, each in SETTINGS.items() if each.annotation is SecretStr} | {
    "DATABASE_URL",
    "REDIS_URL",
    "HF_TOKEN",
}
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
CREDENTIALS = {
    "DATABASE_URL", "REDIS_URL", "PENSTOCK_INTERNAL_TOKEN", "PENSTOCK_KEY_PEPPER", "PENSTOCK_ENGINE_KEY",
    "PENSTOCK_CONSOLE_SECRET", "PENSTOCK_SIGNING_KEY", "PENSTOCK_SMTP_URL",
}  # fmt: skip
"""What docker-compose.yml gives to every role."""
READS = {
    "migrate": {"DATABASE_URL"},
    "api": CREDENTIALS - {"PENSTOCK_CONSOLE_SECRET", "PENSTOCK_SMTP_URL"},
    "scheduler": {"DATABASE_URL", "PENSTOCK_INTERNAL_TOKEN"},
    "jobs": CREDENTIALS - {"PENSTOCK_INTERNAL_TOKEN", "PENSTOCK_ENGINE_KEY", "PENSTOCK_CONSOLE_SECRET"},
    "console": CREDENTIALS - {"PENSTOCK_ENGINE_KEY"},
    "agent": {"PENSTOCK_INTERNAL_TOKEN", "PENSTOCK_ENGINE_KEY"},
}
"""Those that the chart gives: what the role reads."""


@pytest.fixture(scope="module", params=SETS)
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render(SETS[request.param])


@pytest.fixture(scope="module")
def full() -> list[dict[str, Any]]:
    return render(FULL)


def role_of(pod: dict[str, Any]) -> str:
    [container] = pod["spec"]["containers"]
    [role] = container["args"]
    return str(role)


def named(manifests: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in manifests if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_accepts_every_manifest(manifests: list[dict[str, Any]], version: str) -> None:
    for each in manifests:
        if each["kind"] != "PodMonitor":  # of the Prometheus operator, which publishes its schema elsewhere
            assert kubernetes_validate.validate(each, version, strict=True) == version


def test_the_versions_of_kubernetes_are_those_with_published_schemas() -> None:
    assert ".".join(kubernetes_validate.latest_version().split(".")[:2]) == NEWEST
    assert OLDEST < NEWEST


def test_containers_run_roles_with_settings_that_exist(manifests: list[dict[str, Any]]) -> None:
    for pod in pods(manifests).values():
        assert role_of(pod) in {*REQUIRED, "migrate"}
        others = {"HF_HOME", "HF_TOKEN", "NCCL_DEBUG"}
        assert set(variables(pod)) - set(SETTINGS) <= others


def test_every_role_has_what_it_requires_and_can_read_it(manifests: list[dict[str, Any]]) -> None:
    for pod in pods(manifests).values():
        given = variables(pod)
        required = {name for name, each in SETTINGS.items() if _field(name) in REQUIRED.get(role_of(pod), ())}
        assert required <= set(given)
        assert all("optional" not in given[name]["secretKeyRef"] for name in required)
        literal = {
            name.lower().removeprefix("penstock_"): value
            for name, value in given.items()
            if isinstance(value, str)
        }
        Settings(**{name: value for name, value in literal.items() if name in Settings.model_fields})


def _field(variable: str) -> str:
    return variable.lower().removeprefix("penstock_")


def test_no_manifest_has_a_secret(manifests: list[dict[str, Any]]) -> None:
    assert not [each for each in manifests if each["kind"] == "Secret"]
    for pod in pods(manifests).values():
        for name, value in variables(pod).items():
            if name in SECRETS:
                assert value["secretKeyRef"]["key"] == name
            else:
                assert not isinstance(value, dict) or "secretKeyRef" not in value, name


def test_values_cannot_have_a_secret() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["$defs"]["secretName"]["enum"]) == SECRETS
    with pytest.raises(Refused, match="PENSTOCK_KEY_PEPPER"):
        render({"api": {"settings": {"PENSTOCK_KEY_PEPPER": "x"}}})


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"pools": [{"name": "a", "nodeSelector": {}}]}, "nodeSelector"),
        ({"publicUrl": "llm.example.com"}, "publicUrl"),
        ({"api": {"replica": 3}}, "replica"),
        ({"settings": {"PENSTOCK_API_WORKERS": 2}}, "PENSTOCK_API_WORKERS"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        render(values)


def test_selectors_match_the_pods_of_one_role_alone(manifests: list[dict[str, Any]]) -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(manifests).items()}
    for each in manifests:
        name, spec = each["metadata"]["name"], each["spec"]
        selector = spec.get("podSelector") or spec.get("selector") or {}
        selector = selector.get("matchLabels", selector)
        if each["kind"] in ("Job", "Ingress", "PersistentVolumeClaim", "PodMonitor"):
            continue
        assert selector, name
        chosen = {pod for pod, of in labels.items() if selector.items() <= of.items()}
        if each["kind"] in ("StatefulSet", "Deployment", "DaemonSet"):
            assert chosen == {name}
        else:
            roles = {role_of(pod) for pod_name, pod in pods(manifests).items() if pod_name in chosen}
            assert len(roles) == 1 or (
                (each["kind"], name) == ("NetworkPolicy", "penstock-agent") and not roles
            ), name
        if each["kind"] == "Service":
            for port in spec["ports"]:
                for pod in chosen:
                    [container] = pods(manifests)[pod]["spec"]["containers"]
                    assert port["targetPort"] in {port["name"] for port in container["ports"]}


def test_schedulers_are_found_where_their_services_are(manifests: list[dict[str, Any]]) -> None:
    services = {
        f"{each['metadata']['name']}:{port['port']}"
        for each in manifests
        if each["kind"] == "Service" and "-scheduler-" in each["metadata"]["name"]
        for port in each["spec"]["ports"]
    }
    for pod in pods(manifests).values():
        assert set(variables(pod)["PENSTOCK_SCHEDULERS"].split(",")) == services


def test_no_pod_gets_variables_or_tokens_of_the_cluster(manifests: list[dict[str, Any]]) -> None:
    """A Service named penstock-scheduler-0 would otherwise set PENSTOCK_SCHEDULER_0_PORT, and a release of another name
    could set PENSTOCK_SCHEDULER_PORT itself."""
    for pod in pods(manifests).values():
        assert pod["spec"]["enableServiceLinks"] is False
        assert pod["spec"]["automountServiceAccountToken"] is False


def test_containers_are_confined(manifests: list[dict[str, Any]]) -> None:
    for pod in pods(manifests).values():
        [container] = pod["spec"]["containers"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        mounted = {each["mountPath"] for each in container["volumeMounts"]}
        assert {"/tmp", variables(pod)["PENSTOCK_DATA_DIR"]} <= mounted
        assert container["resources"]["requests"]


def test_the_spool_outlives_the_pod_and_open_answers_have_their_time(full: list[dict[str, Any]]) -> None:
    api = named(full, "StatefulSet", "penstock-api")["spec"]
    assert api["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    [claim] = api["volumeClaimTemplates"]
    [mount] = [
        each
        for each in api["template"]["spec"]["containers"][0]["volumeMounts"]
        if each["name"] == claim["metadata"]["name"]
    ]
    given = variables(api["template"])
    assert mount["mountPath"] == given["PENSTOCK_DATA_DIR"]
    stops_after = int(given["PENSTOCK_SHUTDOWN_DELAY_S"]) + int(given["PENSTOCK_DRAIN_S"])
    assert stops_after == 310
    assert api["template"]["spec"]["terminationGracePeriodSeconds"] >= stops_after + 25


def test_what_asks_the_model_hub_has_a_bounded_place_for_it(full: list[dict[str, Any]]) -> None:
    for role in ("api", "console"):
        pod = pods(full)[f"penstock-{role}"]
        [name] = [
            each["name"]
            for each in pod["spec"]["containers"][0]["volumeMounts"]
            if each["mountPath"] == variables(pod)["HF_HOME"]
        ]
        [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == name]
        assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Mi"}


def test_settings_of_a_role_win_even_when_empty(full: list[dict[str, Any]]) -> None:
    assert variables(pods(full)["penstock-api"])["PENSTOCK_TRUSTED_PROXIES"] == ""
    assert variables(pods(full)["penstock-jobs"])["PENSTOCK_TRUSTED_PROXIES"] != ""


def test_engines_are_reached_by_the_api_alone(full: list[dict[str, Any]]) -> None:
    rules = named(full, "NetworkPolicy", "penstock-agent")["spec"]["ingress"]
    unbounded = [rule for rule in rules if "ports" not in rule]
    assert [
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for rule in unbounded
        for peer in rule["from"]
    ] == ["api"]
    assert [rule["ports"] for rule in rules if "ports" in rule] == [[{"port": 9100}]]
    policies = {each["metadata"]["name"] for each in full if each["kind"] == "NetworkPolicy"}
    assert {f"penstock-{role}" for role in (*REQUIRED, "migrate")} == policies


def test_without_peers_nothing_reaches_the_internal_ports() -> None:
    for policy in render({}):
        if policy["kind"] == "NetworkPolicy":
            ports = [port["port"] for rule in policy["spec"]["ingress"] for port in rule.get("ports", [])]
            assert 9100 not in ports


def test_a_pool_is_a_daemonset_on_its_nodes_with_their_gpus(full: list[dict[str, Any]]) -> None:
    catalog = load_catalog()
    for pool in POOLS:
        spec = named(full, "DaemonSet", f"penstock-agent-{pool['name']}")["spec"]
        pod, given = spec["template"], variables(spec["template"])
        assert pod["spec"]["nodeSelector"] == pool["nodeSelector"]
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        assert limits.get("nvidia.com/gpu", 0) == pool.get("gpus", 0)
        kind = given["PENSTOCK_HOST_KIND"]
        assert not kind or catalog.hosts[kind].gpus == pool["gpus"]
        assert not {"DATABASE_URL", "REDIS_URL", "PENSTOCK_KEY_PEPPER"} & set(given)
    kept, lost = (pods(full)[f"penstock-agent-{name}"]["spec"] for name in ("h100x8", "b300"))
    assert kept["volumes"][0]["hostPath"]["path"] == "/var/lib/penstock/h100x8"
    assert lost["volumes"][0]["emptyDir"] == {}
    assert "initContainers" not in lost
    assert lost["containers"][0]["resources"] == {
        "requests": {"cpu": "16"},
        "limits": {"memory": "512Gi", "nvidia.com/gpu": 8},
    }


def test_every_route_of_the_api_goes_to_the_api(full: list[dict[str, Any]]) -> None:
    ingress = named(full, "Ingress", "penstock")["spec"]
    assert ingress["tls"] == [{"hosts": ["llm.example.com"], "secretName": "tls"}]
    [rule] = ingress["rules"]
    to_api = {
        (each["path"], each["pathType"])
        for each in rule["http"]["paths"]
        if each["backend"]["service"]["name"] == "penstock-api"
    }
    hidden = {"/webhooks/stripe", "/docs", "/openapi.json"}
    for path in {re.sub(r"\{[^}]*\}", "x", path) for path in document()["paths"]} | hidden:
        assert any(
            path == prefix or (kind == "Prefix" and path.startswith(prefix)) for prefix, kind in to_api
        ), path


def test_alerts_know_the_jobs_by_their_roles(full: list[dict[str, Any]]) -> None:
    [monitor] = [each for each in full if each["kind"] == "PodMonitor"]
    label, alerts = monitor["spec"]["jobLabel"], (ROOT / "deploy/prometheus/alerts.yml").read_text()
    jobs = {pod["metadata"]["labels"][label] for pod in pods(full).values()} - {"migrate"}
    assert {name for each in re.findall(r'\bjob=~?"([^"]+)"', alerts) for name in each.split("|")} == jobs


@pytest.mark.parametrize("role", READS)
def test_roles_have_the_settings_that_compose_gives_them(full: list[dict[str, Any]], role: str) -> None:
    composed = SERVICES[role]["environment"]
    [pod, *_] = [each for each in pods(full).values() if role_of(each) == role]
    given = variables(pod)
    assert given.keys() & CREDENTIALS == READS[role]
    wanted = {
        name for name in composed.keys() - CREDENTIALS if _says_more_than_the_setting(name, composed[name])
    }
    assert wanted <= given.keys()
    literal = {
        name for name in composed.keys() & given.keys() if composed[name] and "$" not in str(composed[name])
    }
    changed = {name for name in literal if given[name] != composed[name]}
    assert changed <= {"PENSTOCK_SCHEDULERS", "PENSTOCK_SHUTDOWN_DELAY_S", "PENSTOCK_TRUSTED_PROXIES"}


def _says_more_than_the_setting(name: str, value: str | None) -> bool:
    """Whether compose gives another value than the setting's default, when .env says nothing."""
    if name in SECRETS:
        return True
    given = re.sub(r"^\$\{\w+:(?:-(.*)|\+.*)\}$", r"\1", str(value or ""))
    return given != "" and (name not in SETTINGS or given != str(SETTINGS[name].default))


def test_a_release_of_another_name_keeps_its_objects_apart() -> None:
    names = {each["metadata"]["name"] for each in render({}, "west")}
    assert all(name.startswith("west-penstock") for name in names)


def test_the_notes_name_the_pod_that_exists() -> None:
    notes = render_files({}, "west")["penstock/templates/NOTES.txt"]
    assert "exec -it west-penstock-api-0 -- penstock users create" in notes
