"""`aiperf profile` over chat completions, text completions, responses, messages and embeddings."""

import json
import os
from pathlib import Path

from features import EMBEDDING_MODEL, KEY, MODEL, ROOT_URL, TOKENIZER, command, feature, run

ROOT = Path(os.environ["HOME"])


def _profile(kind, *words, model=MODEL):
    folder = ROOT / f"aiperf-{kind}{len(words)}"
    command(
        "aiperf", "profile", "--model", model, "--url", ROOT_URL, "--endpoint-type", kind, "--api-key", KEY,
        "--tokenizer", TOKENIZER, "--request-count", "6", "--concurrency", "2", "--ui", "none",
        "--prompt-input-tokens-mean", "64", "--prompt-output-tokens-mean", "8", "--workers-max", "1",
        "--no-server-metrics", "--no-gpu-telemetry", "--output-artifact-dir", str(folder), *words,
        HF_HUB_OFFLINE="", TRANSFORMERS_OFFLINE="",  # set, it looks for folders in the hub's cache
    )  # fmt: skip
    [found] = folder.rglob("profile_export_aiperf.json")
    result = json.loads(found.read_text())
    assert result["request_count"]["avg"] == 6, result["request_count"]
    assert not result.get("error_summary"), result["error_summary"]


@feature("chat")
def chat():
    _profile("chat")


@feature("chat, streamed, with the server's token counts")
def stream():
    _profile("chat", "--streaming", "--use-server-token-count")


@feature("text completions")
def completions():
    _profile("completions")


@feature("responses")
def responses():
    _profile("responses", "--streaming")


@feature("messages")
def messages():
    _profile("messages", "--streaming")


@feature("embeddings")
def embeddings():
    _profile("embeddings", model=EMBEDDING_MODEL)


run()
