"""Acceptance of a real host, as `penstock host accept` does it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.gpu.conftest import ROOT
from workers.machine import Gpus

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(190)]


def test_the_host_is_fit_to_serve(gpus: Gpus, record_property: Callable[[str, object], None]) -> None:
    env = os.environ.get("PENSTOCK_ENGINE_ENV")
    command = [
        sys.executable,
        "-m",
        "cli.main",
        "host",
        "accept",
        "--json",
        *(["--engine-env", env] if env else []),
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert ran.stdout, ran.stderr
    found = json.loads(ran.stdout)
    record_property("acceptance", found)
    assert found["verdict"] in ("accepted", "degraded"), found["findings"]
    assert len(found["reading"]["gpus"]) == len(gpus.ids)
