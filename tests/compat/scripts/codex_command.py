"""Codex CLI with a model provider of ours; it speaks the Responses API."""

import json
import os
from pathlib import Path

from features import BASE_URL, KEY, MODEL, command, feature, run

HOME = Path(os.environ["HOME"])
WORK = HOME / "work"
UNENDED = "Incomplete response returned, reason: max_output_tokens"
"""What it says of an answer that ran to the model's limit of tokens, as random words often do."""
WORK.mkdir()
os.chdir(WORK)
(HOME / ".codex").mkdir()
(HOME / ".codex" / "config.toml").write_text(
    f'model = "{MODEL}"\nmodel_provider = "ours"\nmodel_context_window = 65536\n'
    f'[model_providers.ours]\nname = "Ours"\nbase_url = "{BASE_URL}"\nenv_key = "OUR_KEY"\nwire_api = "responses"\n'
    "request_max_retries = 0\nstream_max_retries = 0\n"
)


def _turn(*words):
    text = command(
        "codex", "exec", *words, "--json", "--skip-git-repo-check", "Say hello", OUR_KEY=KEY, excused=UNENDED
    )
    events = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    kinds = [event["type"] for event in events]
    assert {"type": "error", "message": UNENDED} in events or "turn.completed" in kinds, events
    assert "item.completed" in kinds, events


@feature("one turn of an agent with its default tools (codex exec)")
def turn():
    _turn("--sandbox", "read-only")


@feature("a second turn of the same session (codex exec resume)")
def second_turn():
    _turn("resume", "--last")


run()
