"""The settings without which a role cannot run."""

from typing import Literal

from pydantic import SecretStr

from cli.configuration import variables
from core.settings import Settings
from workers.own_credentials import may_show_itself

_STORE_URLS = ("database_url", "redis_url")
Role = Literal["api", "scheduler", "agent", "jobs", "console"]
"""A role of the platform."""
REQUIRED: dict[Role, tuple[str, ...]] = {
    "api": (*_STORE_URLS, "key_pepper", "internal_token"),
    "scheduler": ("database_url", "internal_token"),
    "agent": (),
    "jobs": _STORE_URLS,
    "console": (*_STORE_URLS, "key_pepper", "console_secret"),
}
"""What each role must be given; the agent's two ways to show itself are checked apart."""


def missing(role: Role, settings: Settings) -> str | None:
    """What `role` needs and does not have, as a sentence; None = it has all."""
    for name in REQUIRED[role]:
        if not text_of(getattr(settings, name)):
            return f"{variables()[name]} is not set; `penstock {role}` needs it (`penstock up` sets all)"
    if role == "agent" and not may_show_itself(settings):
        return (
            "neither PENSTOCK_INTERNAL_TOKEN nor PENSTOCK_JOIN_TOKEN is set; `penstock agent` needs one of them "
            "(`penstock up` sets the first, `penstock hosts invite` prints the other)"
        )
    return None


def text_of(value: object) -> str:
    """A setting's value as text, secrets included."""
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
