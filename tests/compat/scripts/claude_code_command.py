"""Claude Code, told the address by its environment; it speaks the Messages API."""

import json
import os
from pathlib import Path

from features import KEY, MODEL, ROOT_URL, command, feature, run

WORK = Path(os.environ["HOME"]) / "work"
WORK.mkdir()
os.chdir(WORK)
ENV = {
    "ANTHROPIC_BASE_URL": ROOT_URL,
    "ANTHROPIC_AUTH_TOKEN": KEY,
    "ANTHROPIC_MODEL": MODEL,
    "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "20000",  # random weights end an answer after some 4,000
    "DISABLE_AUTOUPDATER": "1",
}


def _turn(*words):
    answer = json.loads(
        command("claude", "-p", *words, "Say hello", "--output-format", "json", "--max-turns", "1", **ENV)
    )
    answer = answer[-1] if isinstance(answer, list) else answer
    assert not answer["is_error"], answer
    assert answer["usage"]["output_tokens"] > 0, answer
    return answer["session_id"]


@feature("one turn of an agent (claude -p), and a second of the same session, with usage")
def turns():
    assert _turn() == _turn("--continue")


@feature("one turn, events as they come (--output-format stream-json)")
def stream():
    text = command(
        "claude", "-p", "Say hello", "--output-format", "stream-json", "--verbose", "--include-partial-messages",
        "--max-turns", "1", **ENV,
    )  # fmt: skip
    kinds = [json.loads(line)["type"] for line in text.splitlines() if line.startswith("{")]
    assert "stream_event" in kinds, kinds
    assert kinds[-1] == "result", kinds


run()
