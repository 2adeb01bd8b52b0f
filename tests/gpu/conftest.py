"""Fixtures of the tests that need a GPU: `make gpu` runs them. Elsewhere they are skipped, and say why."""

import asyncio
import os
from pathlib import Path

import pytest

from workers import engine_install
from workers.machine import Gpus, find_gpus

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 590
"""Seconds that all tests may take together, by their own limits."""


@pytest.fixture(scope="session")
def gpus() -> Gpus:
    """The GPUs of this machine."""
    found = asyncio.run(find_gpus())
    if not found.ids:
        pytest.skip("the driver lists no GPU")
    return found


@pytest.fixture(scope="session")
def engine_env(gpus: Gpus) -> Path:
    """The engine's environment, built for GPUs."""
    env = Path(os.environ.get("PENSTOCK_ENGINE_ENV") or ROOT / ".engine")
    status = engine_install.status(env)
    if (status.state, status.kind) != ("installed", "gpu"):
        pytest.skip(f"{env} has no engine for GPUs ({status.state} {status.kind}): penstock engine install")
    return env
