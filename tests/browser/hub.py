"""What the console of the browser tests finds on the model hub, and the parser that it asks about arguments."""

import json
from pathlib import Path

from tests.support.adapters import adapter_files
from tests.unit.workers.test_model_config import LLAMA

HUB_MODEL = "acme/river"
"""A repository with the config.json of a model, and with the files of an adapter of penstock/tiny."""
_PARSER = """#!/bin/sh
case "$*" in *no-such-flag*) echo "vllm serve: error: unrecognized arguments: --no-such-flag" >&2; exit 2;; esac
"""


def hub_files() -> dict[str, bytes]:
    """The files of the repository."""
    config = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    return {"config.json": json.dumps(config).encode(), **adapter_files()}


def engine_parser(directory: Path) -> Path:
    """An engine environment whose parser knows every argument but one."""
    python = directory / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(_PARSER)
    python.chmod(0o755)
    (directory / "penstock-steps.json").write_text('{"kind": "cpu", "done": {"provided": "1"}}')
    return directory
