"""The Stripe of `penstock up`: the real one when STRIPE_API_KEY is set, else the simulated one."""

import os
import sys
from pathlib import Path

from cli.rundir import Secrets
from cli.supervisor import RoleSpec
from core.child import free_port

ROLE = "stripe-sim"
STRIPE_ROLES = frozenset({"api", "jobs", "console"})
"""Roles whose environment contains Stripe's keys."""
_VARIABLES = ("STRIPE_API_KEY", "STRIPE_WEBHOOK_SECRET", "PENSTOCK_STRIPE_BASE_URL")
_GRACE_S = 5.0


class StripeSetup:
    """Stripe's settings for the roles, and the process of the simulated Stripe."""

    def __init__(self, host: str, secrets: Secrets) -> None:
        self.simulated = not os.environ.get("STRIPE_API_KEY")
        self._host = host
        self._port = free_port(host) if self.simulated else 0
        self._secrets = secrets

    @property
    def url(self) -> str:
        """Base address of Stripe's API; empty = Stripe's public address."""
        if self.simulated:
            return f"http://{self._host}:{self._port}"
        return os.environ.get("PENSTOCK_STRIPE_BASE_URL", "")

    def env(self, role: str, base: dict[str, str]) -> dict[str, str]:
        """`base` with Stripe's settings when `role` needs them, else without them."""
        found = {name: value for name, value in base.items() if name not in _VARIABLES}
        if role not in STRIPE_ROLES:
            return found
        if not self.simulated:
            return base
        return found | {
            "STRIPE_API_KEY": self._secrets.stripe_sim_key,
            "STRIPE_WEBHOOK_SECRET": self._secrets.stripe_sim_webhook_secret,
            "PENSTOCK_STRIPE_BASE_URL": self.url,
        }

    def spec(self, api_port: int, data_dir: Path, cwd: Path, env: dict[str, str]) -> RoleSpec:
        """The simulated Stripe's process. Its secrets are in the environment, as arguments are visible to all users."""
        return RoleSpec(
            name=ROLE,
            role=ROLE,
            command=[
                sys.executable, "-m", "cli.main", "stripe-sim", "--host", self._host, "--port", str(self._port),
                "--webhook-url", f"http://{self._host}:{api_port}/webhooks/stripe",
                "--state", str(data_dir / "stripe-sim.jsonl"),
            ],
            env=self.env(ROLE, env)
            | {
                "PENSTOCK_STRIPE_SIM_KEY": self._secrets.stripe_sim_key,
                "STRIPE_WEBHOOK_SECRET": self._secrets.stripe_sim_webhook_secret,
            },
            cwd=cwd,
            health_url=f"{self.url}/healthz",
            grace_s=_GRACE_S,
        )  # fmt: skip

    def runtime_info(self) -> dict[str, str | bool | None]:
        """Stripe's entries of runtime.json."""
        given = os.environ.get
        return {
            "stripe_simulated": self.simulated,
            "stripe_base_url": self.url,
            "stripe_api_key": self._secrets.stripe_sim_key if self.simulated else given("STRIPE_API_KEY"),
            "stripe_webhook_secret": self._secrets.stripe_sim_webhook_secret
            if self.simulated
            else given("STRIPE_WEBHOOK_SECRET"),
        }

    def notes(self) -> list[str]:
        """Warnings for the start panel."""
        if not self.simulated and not os.environ.get("STRIPE_WEBHOOK_SECRET"):
            return ["STRIPE_WEBHOOK_SECRET is not set: Stripe's webhooks are refused until it is."]
        return []


def panel_line(info: dict[str, object]) -> str:
    """Stripe's line of the start panel."""
    if info["stripe_simulated"]:
        return f"SIMULATED Stripe at {info['stripe_base_url']}, no money moves (STRIPE_API_KEY: the real one)"
    return f"Stripe{f' at {url}' if (url := info['stripe_base_url']) else ''}"
