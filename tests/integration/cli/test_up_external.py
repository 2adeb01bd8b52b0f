"""`penstock up --engine external` in front of a plain engine whose models the catalog does not know."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import openai
import pytest

from tests.support.openai_engine import WORDS, OpenAIEngine
from tests.support.stack import ROOT, Stack
from tests.support.waiting import until_sync

pytestmark = pytest.mark.timeout(300)

KEY = "engine-secret-1"
LLAMA = "meta-llama/Llama-3.1-8B"
ADAPTER = "/adapters/sql@2"
EMBEDDER = "BAAI/bge-m3"
PRICES = ("--price-input", "0.20", "--price-cached-input", "0.05", "--price-output", "0.60")


@pytest.fixture
def engine() -> Iterator[OpenAIEngine]:
    models = {EMBEDDER: {"max_model_len": 512}, LLAMA: {"max_model_len": 8192}, ADAPTER: {"parent": LLAMA}}
    with OpenAIEngine(models, key=KEY) as made:
        yield made


@pytest.fixture
def stack(engine: OpenAIEngine, tmp_path: Path) -> Iterator[Stack]:
    made = Stack(
        tmp_path / "data",
        *("--engine", "external", "--engine-url", f"{engine.url}/v1", *PRICES, "--embeddings", EMBEDDER),
        env={"PENSTOCK_ENGINE_KEY": KEY},
    )
    yield made
    made.stop()


def report(stack: Stack) -> dict[str, dict[str, str]]:
    text = stack.command("usage", "report", "--by", "model", "--format", "csv")
    return {row["model"]: row for row in csv.DictReader(io.StringIO(text))}


def up(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "cli.main",
        "up",
        "--data-dir",
        str(tmp_path / "data"),
        "--engine",
        "external",
    ]
    env = {name: value for name, value in os.environ.items() if name != "PENSTOCK_ENGINE_KEY"}
    return subprocess.run([*command, *flags], capture_output=True, text=True, cwd=ROOT, env=env, timeout=60)


def test_a_start_that_cannot_succeed_is_one_line(engine: OpenAIEngine, tmp_path: Path) -> None:
    wrong = tmp_path / "key"
    wrong.write_text("wrong-key-1\n")
    right = tmp_path / "right"
    right.write_text(KEY)
    address = ("--engine-url", engine.url)
    for flags, message in (
        (
            address,
            "requires an API key (GET /v1/models: 401); set PENSTOCK_ENGINE_KEY or give --engine-key-file",
        ),
        ((*address, "--engine-key-file", str(wrong)), "refuses the API key"),
        ((*address, "--engine-key-file", "wrong-key-2"), "--engine-key-file cannot be read"),
        ((*address, "--price-input", "1"), "--price-input and --price-output go together"),
        (
            (*address, "--embeddings", "nobody", "--engine-key-file", str(right)),
            "names 'nobody', which no engine lists",
        ),
    ):
        refused = up(tmp_path, *flags)
        assert refused.returncode == 2
        assert message in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1
        assert "wrong-key" not in refused.stderr + refused.stdout


def check_embeddings(client: openai.OpenAI, stack: Stack) -> None:
    """What the operator names gives embeddings, and nothing else."""
    told = client.models.retrieve(EMBEDDER).to_dict()
    assert (told["capabilities"], told["context_length"]) == (["embeddings"], 512)
    answer = client.embeddings.create(model=EMBEDDER, input=["Hello you", "there"], encoding_format="float")
    assert [entry.embedding for entry in answer.data] == [[2.0, 9.0], [1.0, 5.0]]
    assert answer.usage.prompt_tokens == 3
    for act in (
        lambda: client.chat.completions.create(model=EMBEDDER, messages=[{"role": "user", "content": "Hi"}]),
        lambda: client.embeddings.create(model=LLAMA, input="Hello"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            act()
        assert refused.value.code == "unsupported_by_model"
    until_sync(lambda: report(stack).get(EMBEDDER, {}).get("requests") == "1", 30)
    assert report(stack)[EMBEDDER]["cost_usd"] == "0.0000006"  # 3 * 0.20 dollars per million


def test_what_the_engine_lists_is_served_and_billed(stack: Stack, engine: OpenAIEngine) -> None:
    stack.start()
    client = openai.OpenAI(base_url=stack.base_url, api_key=stack.ready["api_key"])
    assert stack.ready["model"] == LLAMA
    assert client.models.retrieve(LLAMA).to_dict()["context_length"] == 8192
    for name in (LLAMA, ADAPTER):
        messages: list[openai.types.chat.ChatCompletionMessageParam] = [
            {"role": "user", "content": "Hello you there"}
        ]
        whole = client.chat.completions.create(model=name, messages=messages)
        assert whole.choices[0].message.content == "".join(WORDS)
        stream = client.chat.completions.create(model=name, messages=messages, max_tokens=4, stream=True)
        text = "".join(choice.delta.content or "" for event in stream for choice in event.choices)
        assert text == "".join(WORDS[:4])
    assert {body["model"] for body in engine.requests} == {LLAMA, ADAPTER}

    until_sync(lambda: report(stack).get(ADAPTER, {}).get("requests") == "2", 30)
    for name in (LLAMA, ADAPTER):
        row = report(stack)[name]
        assert (row["input_tokens"], row["output_tokens"]) == ("6", "10")
        assert row["cost_usd"] == "0.0000072"  # 6 * 0.20 + 10 * 0.60 dollars per million

    check_embeddings(client, stack)

    engine.together = 100  # more than the 64 sequences of the toy model's profile
    with ThreadPoolExecutor(engine.together) as pool:
        ask = partial(client.chat.completions.create, model=LLAMA, messages=messages)
        answers = [pool.submit(ask) for _ in range(engine.together)]
        assert {one.result().choices[0].message.content for one in answers} == {"".join(WORDS)}

    allowed = stack.command("keys", "create", "demo", "--name", "narrow", "--model", ADAPTER, "--json")
    narrow = openai.OpenAI(base_url=stack.base_url, api_key=json.loads(allowed)["secret"])
    narrow.chat.completions.create(model=ADAPTER, messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(openai.PermissionDeniedError):
        narrow.chat.completions.create(model=LLAMA, messages=[{"role": "user", "content": "Hi"}])

    lines = [" ".join(process.cmdline()) for process in stack.processes()]
    texts = [path.read_text(errors="replace") for path in (stack.data_dir / "logs").iterdir()]
    texts += [path.read_text() for path in (stack.ready_file, stack.data_dir / "runtime.json", stack.log)]
    assert not [text for text in lines + texts if KEY in text]
