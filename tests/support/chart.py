"""Renders deploy/helm/penstock with Helm itself, from its SDK for Python."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy/helm/penstock"
AVAILABLE = importlib.util.find_spec("helm_python") is not None
"""Whether this platform has a wheel of Helm's SDK (pyproject.toml)."""

# In a process of its own: the library starts Go's runtime, which has threads and handlers of signals.
_RENDER = """
import json, sys
import helm_python
with helm_python.Chart.load(sys.argv[1]) as chart:
    try:
        print(json.dumps(chart.render(json.load(sys.stdin), name=sys.argv[2], namespace="prod")))
    except helm_python.HelmError as error:
        sys.exit(str(error))
"""


class Refused(Exception):
    """Helm refused the values; the message is Helm's."""


def render_files(values: dict[str, Any], release: str = "penstock") -> dict[str, str]:
    """The text of each template by its path. Raises Refused."""
    ran = subprocess.run(
        [sys.executable, "-c", _RENDER, str(CHART), release],
        input=json.dumps(values),
        capture_output=True,
        text=True,
    )
    if ran.returncode:
        raise Refused(ran.stderr)
    files: dict[str, str] = json.loads(ran.stdout)
    return files


def render(values: dict[str, Any], release: str = "penstock") -> list[dict[str, Any]]:
    """The manifests that the chart makes of `values`. Raises Refused."""
    return [
        manifest
        for path, text in render_files(values, release).items()
        if path.endswith(".yaml")
        for manifest in yaml.safe_load_all(text)
        if manifest
    ]


def pods(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pod template of every workload by the workload's name."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]
        for each in manifests
        if "template" in each.get("spec", {})
    }


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    """Variables of the pod's container: values, or the dict that names their source."""
    [container] = pod["spec"]["containers"]
    found = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
    assert len(found) == len(container["env"]), "a variable is set twice"
    return found
