"""The platform that the tools are pointed at."""

from dataclasses import dataclass
from pathlib import Path

from tests.support.stack import Stack


@dataclass(frozen=True)
class Target:
    """The platform that the tools are pointed at."""

    base_url: str
    """With /v1."""
    key: str
    model: str
    tokenizer: Path
    """A folder with the model's tokenizer."""


def target_of(stack: Stack, model: str, name: str) -> Target:
    """The platform as a customer with credit, the new organisation `name`, sees it."""
    tenant = stack.make_tenant(name, "100")
    return Target(stack.base_url, tenant.key, model, stack.data_dir / "models" / model.replace("/", "-"))
