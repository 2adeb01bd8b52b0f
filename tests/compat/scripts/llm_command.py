"""The command `llm` with a model of ours in its extra-openai-models.yaml."""

import json
import os
from pathlib import Path

from features import BASE_URL, COLOURS, KEY, MODEL, command, feature, is_colours, run

HOME = Path(os.environ["HOME"]) / "llm"
os.environ["LLM_USER_PATH"] = str(HOME)
HOME.mkdir(parents=True, exist_ok=True)
(HOME / "extra-openai-models.yaml").write_text(
    f"- model_id: ours\n  model_name: {MODEL}\n  api_base: {BASE_URL}\n  api_key_name: ours\n"
    "  supports_schema: true\n  supports_tools: true\n  can_stream: true\n"
)
(HOME / "keys.json").write_text(json.dumps({"ours": KEY}))


@feature("prompt, streamed")
def prompt():
    assert command("llm", "-m", "ours", "-o", "max_tokens", "16", "Hello").strip()


@feature("prompt, whole, with usage")
def whole():
    assert command(
        "llm", "-m", "ours", "--no-stream", "-o", "max_tokens", "16", "-s", "Be brief", "Hello"
    ).strip()
    [last] = json.loads(command("llm", "logs", "-n", "1", "--json"))
    assert last["output_tokens"] > 0


@feature("conversation")
def conversation():
    assert command("llm", "-c", "-m", "ours", "-o", "max_tokens", "16", "Again").strip()


@feature("structured output")
def structured():
    text = command("llm", "-m", "ours", "--schema", json.dumps(COLOURS), "-o", "max_tokens", "200", "Hello")
    is_colours(json.loads(text))


run()
