"""LoRA adapters of organisations on a whole platform with simulated engines."""

from pathlib import Path

import pytest

from tests.support.adapters import use_adapters, write_adapter
from tests.support.stack import Stack

MODEL = "penstock/tiny"


@pytest.mark.timeout(300)
def test_adapters_are_uploaded_called_reported_and_deleted(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "d", "--engine", "sim", "--profile", "lora").start()
    try:
        use_adapters(stack, MODEL)
        tenant = stack.make_tenant("Shell")
        directory = write_adapter(tmp_path / "adapter")
        made = stack.command(
            "adapters", "upload", tenant.id, str(directory), "--model", MODEL, "--name", "one", "--json"
        )
        assert f'"public_name": "{MODEL}:one:' in made
        assert "one" in stack.command("adapters", "list", tenant.id)
    finally:
        stack.stop()
