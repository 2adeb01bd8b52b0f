"""The platform that the tools are pointed at."""

from dataclasses import dataclass
from pathlib import Path

from tests.support.stack import Stack
from workers.engine_command import tiny_directory

MODEL = "penstock/tiny"
EMBEDDING_MODEL = "penstock/tiny-embed"


@dataclass(frozen=True)
class Target:
    """The platform that the tools are pointed at."""

    base_url: str
    """With /v1."""
    key: str
    model: str
    embedding_model: str
    tokenizer: Path
    """A folder with the tokenizer of both models."""


def target_of(stack: Stack, name: str) -> Target:
    """The platform as a customer with credit, the new organisation `name`, sees it."""
    tenant = stack.make_tenant(name, "100")
    return Target(stack.base_url, tenant.key, MODEL, EMBEDDING_MODEL, tiny_directory(stack.data_dir))
