"""`vllm bench serve`, from the engine's own environment, over completions of both kinds, responses and embeddings."""

import json
import os
from pathlib import Path

from features import EMBEDDING_MODEL, KEY, MODEL, ROOT_URL, TOKENIZER, command, feature, run

RESULT = Path(os.environ["HOME"]) / "result.json"


def _bench(backend, endpoint, *words, model=MODEL):
    RESULT.unlink(missing_ok=True)
    command(
        "vllm", "bench", "serve", "--backend", backend, "--base-url", ROOT_URL, "--endpoint", endpoint,
        "--model", model, "--tokenizer", TOKENIZER, "--dataset-name", "random", "--random-input-len", "64",
        "--random-output-len", "16", "--num-prompts", "8", "--request-rate", "20", "--disable-tqdm",
        "--save-result", "--result-dir", str(RESULT.parent), "--result-filename", RESULT.name, *words,
        OPENAI_API_KEY=KEY,
    )  # fmt: skip
    result = json.loads(RESULT.read_text())
    assert result["completed"] == 8, result
    return result


@feature("chat completions")
def chat():
    assert _bench("openai-chat", "/v1/chat/completions")["total_output_tokens"] > 0


@feature("text completions of exact length (--ignore-eos)")
def text():
    assert _bench("openai", "/v1/completions", "--ignore-eos")["total_output_tokens"] == 8 * 16


@feature("responses")
def responses():
    assert _bench("openai-responses", "/v1/responses")["total_output_tokens"] > 0


@feature("embeddings")
def embeddings():
    result = _bench("openai-embeddings", "/v1/embeddings", model=EMBEDDING_MODEL)
    assert result["total_input_tokens"] >= 8 * 60, result


run()
