"""LoRA adapters of organisations on the real vLLM."""

import pytest

from tests.e2e.conftest import MODEL
from tests.support.adapters import use_adapters
from tests.support.stack import Stack

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def test_adapters_are_uploaded_called_reported_and_deleted(stacks: dict[str, Stack]) -> None:
    use_adapters(stacks["mirrored"], MODEL)
