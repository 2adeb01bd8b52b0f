"""`guidellm run` over chat completions, text completions, responses and embeddings."""

import json
import os
from pathlib import Path

from features import EMBEDDING_MODEL, KEY, MODEL, ROOT_URL, TOKENIZER, command, feature, run

ROOT = Path(os.environ["HOME"])


def _run(path, model=MODEL):
    report = ROOT / f"{path.replace('/', '-').strip('-')}.json"
    command(
        "guidellm", "run", "--disable-console",
        "--backend", f"kind=openai_http,target={ROOT_URL},model={model},api_key={KEY},request_format={path}",
        "--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6",
        "--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}",
        "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=8",
        "--output", f"kind=json,path={report}",
    )  # fmt: skip
    [result] = json.loads(report.read_text())["benchmarks"]
    totals = result["metrics"]["request_totals"]
    assert totals["successful"] >= 6, totals
    assert totals["errored"] == 0, totals


@feature("chat completions")
def chat():
    _run("/v1/chat/completions")


@feature("text completions")
def text():
    _run("/v1/completions")


@feature("responses")
def responses():
    _run("/v1/responses")


@feature("embeddings")
def embeddings():
    _run("/v1/embeddings", EMBEDDING_MODEL)


run()
