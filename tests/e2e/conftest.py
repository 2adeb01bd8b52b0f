"""Two platforms with the real vLLM and the tiny model for all end-to-end tests of a run.

They differ in what the scheduler knows of caches: `exact` follows the engines' KV events in blocks of tokens,
`mirrored` keeps the text blocks of the prompts that it placed. The engines of the latter take LoRA adapters. Nearly all
the time of these tests goes into engines that come up, each in three processes one after the other, so the four start
at once. Needs `penstock engine install`.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.stack import Stack, alive

MODEL = "penstock/tiny"
KINDS = ("exact", "mirrored")
PRICE = {"input": "0.50", "cached_input": "0.10", "output": "1.60", "reasoning": "1.60"}
START_S = 480.0


@pytest.fixture(scope="session")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Stack]]:
    """The platforms by kind, with two engines each. Nothing of them is left afterwards."""
    made = {
        kind: Stack(
            tmp_path_factory.mktemp(kind) / "data",
            *("--engine", "vllm", "--model", MODEL, "--replicas", "2", "--api-workers", "2"),
            *(("--profile", "lora") if kind == "mirrored" else ()),
            env={"PENSTOCK_PREFIX": kind},
        )
        for kind in KINDS
    }
    with ThreadPoolExecutor(len(made)) as pool:
        try:
            for up in [pool.submit(platform.start, START_S) for platform in made.values()]:
                up.result().approved("POST", "/prices", json={"model": MODEL, **PRICE})
            yield made
        finally:
            processes = [process for platform in made.values() for process in platform.processes()]
            for platform, status in zip(made.values(), pool.map(Stack.stop, made.values()), strict=True):
                assert status == 0, f"penstock up ended with {status}:\n{platform.log.read_text()[-3000:]}"
            assert alive(processes) == []


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The source of prefix knowledge."""
    return str(request.param)


@pytest.fixture
def stack(kind: str, stacks: dict[str, Stack]) -> Stack:
    """The platform of each kind."""
    return stacks[kind]
