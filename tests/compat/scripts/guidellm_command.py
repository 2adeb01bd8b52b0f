"""`guidellm run` over chat completions and text completions."""

import json
import os
from pathlib import Path

from features import KEY, MODEL, ROOT_URL, TOKENIZER, command, feature, run

ROOT = Path(os.environ["HOME"])


def _run(path):
    report = ROOT / f"{path.replace('/', '-').strip('-')}.json"
    command(
        "guidellm", "run", "--disable-console",
        "--backend", f"kind=openai_http,target={ROOT_URL},model={MODEL},api_key={KEY},request_format={path}",
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


run()
