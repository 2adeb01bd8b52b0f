"""`inference-perf` over chat and text completions, whole and streamed, and Anthropic's messages."""

import json
import os
from pathlib import Path

from features import KEY, MODEL, ROOT_URL, TOKENIZER, command, feature, run

ROOT = Path(os.environ["HOME"])
GROUPS, PROMPTS, TOKENS = 2, 3, 8
REQUESTS = GROUPS * PROMPTS
SYNTHETIC = {
    "type": "shared_prefix",
    "shared_prefix": {
        "num_groups": GROUPS,
        "num_prompts_per_group": PROMPTS,
        "system_prompt_len": 32,
        "question_len": 32,
        "output_len": TOKENS,
    },
}
"""Prompts of random tokens, which the command makes for completions of both kinds."""
SENTENCES = {"type": "mock"}
"""What it has for messages."""


def _run(api, data, streaming):
    name = f"{api}-{'streamed' if streaming else 'whole'}"
    settings = {
        "api": {"type": api, "streaming": streaming},
        "data": data,
        "load": {
            "type": "concurrent",
            "num_workers": 1,
            "stages": [{"num_requests": REQUESTS, "concurrency_level": 2}],
        },
        "server": {"type": "vllm", "model_name": MODEL, "base_url": ROOT_URL, "api_key": KEY},
        "tokenizer": {"pretrained_model_name_or_path": TOKENIZER},
        "storage": {"local_storage": {"path": str(ROOT / name)}},
    }
    file = ROOT / f"{name}.json"  # the command reads YAML, which JSON is a part of
    file.write_text(json.dumps(settings))
    command("inference-perf", "--config_file", str(file))
    result = json.loads((ROOT / name / "summary_lifecycle_metrics.json").read_text())
    assert result["failures"]["count"] == 0, result["failures"]
    assert result["successes"]["count"] == REQUESTS, result["successes"]
    assert result["successes"]["output_tokens"]["total"] > 0, "the server's own count"
    return result["successes"]


def _completions(api, streaming):
    """Check that the platform counted every token that was asked for (the command sends `ignore_eos`)."""
    result = _run(api, SYNTHETIC, streaming)
    assert result["output_tokens"]["total"] == REQUESTS * TOKENS, result["output_tokens"]
    return result


@feature("chat completions of exact length")
def chat():
    _completions("chat", streaming=False)


@feature("chat completions of exact length, streamed")
def chat_streamed():
    assert _completions("chat", streaming=True)["latency"]["time_to_first_token"]


@feature("text completions of exact length")
def text():
    _completions("completion", streaming=False)


@feature("text completions of exact length, streamed")
def text_streamed():
    assert _completions("completion", streaming=True)["latency"]["time_to_first_token"]


@feature("messages")
def messages():
    _run("anthropic_messages", SENTENCES, streaming=False)


@feature("messages, streamed")
def messages_streamed():
    _run("anthropic_messages", SENTENCES, streaming=True)  # its times of tokens are of OpenAI's events only


run()
