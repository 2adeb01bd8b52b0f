"""opencode with a provider of ours over chat completions, as its documentation describes for other servers."""

import json
import os
from pathlib import Path

from features import BASE_URL, KEY, MODEL, command, feature, run

WORK = Path(os.environ["HOME"]) / "work"
WORK.mkdir()
os.chdir(WORK)
MODELS = {MODEL: {"name": "Ours", "tool_call": True, "limit": {"context": 65536, "output": 200}}}
PROVIDER = {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": BASE_URL, "apiKey": KEY},
    "models": MODELS,
}
(WORK / "opencode.json").write_text(
    json.dumps(
        {
            "model": f"ours/{MODEL}",
            "small_model": f"ours/{MODEL}",
            "provider": {"ours": PROVIDER},
            "autoupdate": False,
            "share": "disabled",
        }
    )
)


def _turn(*words):
    text = command(
        "opencode", "run", "--format", "json", *words, "Say hello", OPENCODE_DISABLE_MODELS_FETCH="1"
    )
    events = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    [finish] = [event["part"] for event in events if event["type"] == "step_finish"]
    assert finish["tokens"]["output"] > 0, finish
    return finish["sessionID"]


@feature("one turn of an agent (opencode run), and a second of the same session, streamed, with usage")
def turns():
    assert _turn() == _turn("--continue")


run()
