"""The simulated engine over HTTP: vLLM's shapes, usage that agrees with /metrics, aborts, failpoints."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from sim.engine.loop import DEATH_CODE
from tests.support.ports import free_port
from tests.support.waiting import until
from workers.engine_api import EngineApi
from workers.engine_guard import KEY_HEADER, KEY_VARIABLE

MODEL = "penstock/tiny"


class Engine:
    """A running simulated engine and a client for it."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, client: aiohttp.ClientSession) -> None:
        self.process = process
        self.url = url
        self.client = client

    async def complete(self, **body: Any) -> dict[str, Any]:
        async with self.client.post(f"{self.url}/v1/completions", json={"model": MODEL, **body}) as answer:
            assert answer.status == 200, await answer.text()
            return msgspec.json.decode(await answer.read())

    async def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        async with self.client.post(
            f"{self.url}{path}", json={"model": MODEL, "stream": True, **body}
        ) as answer:
            assert answer.status == 200, await answer.text()
            lines = [line async for line in answer.content if line.startswith(b"data: ")]
        assert lines[-1] == b"data: [DONE]\n"
        return [msgspec.json.decode(line[6:]) for line in lines[:-1]]

    async def metric(self, name: str) -> float:
        async with self.client.get(f"{self.url}/metrics") as answer:
            values = [line for line in (await answer.text()).splitlines() if line.startswith(name + "{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in values)

    async def failpoints(self, **points: Any) -> None:
        async with self.client.post(f"{self.url}/failpoints", json=points) as answer:
            assert answer.status == 200


Start = Callable[..., Awaitable[Engine]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    processes: list[asyncio.subprocess.Process] = []
    async with aiohttp.ClientSession(headers={"authorization": "Bearer secret"}) as client:

        async def begin(*flags: str) -> Engine:
            port = free_port()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "sim.engine", "--port", str(port), *flags,
                env={**os.environ, "VLLM_API_KEY": "secret"},
            )  # fmt: skip
            processes.append(process)
            url = f"http://127.0.0.1:{port}"

            async def up() -> bool:
                try:
                    async with client.get(f"{url}/health") as answer:
                        return answer.status == 200
                except aiohttp.ClientConnectionError:
                    return False

            await until(up)
            return Engine(process, url, client)

        yield begin
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_streams_in_vllms_shape(start: Start) -> None:
    engine = await start()
    events = await engine.events(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=5,
        tools=[{"type": "function", "function": {"name": "f"}}],
        tool_choice="auto",
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["usage"]["completion_tokens"] for event in events] == [0, 1, 2, 3, 4, 5, 5]
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["choices"] == []
    assert events[-1]["system_fingerprint"] == "penstock-sim"
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_usage_only_when_asked_for(start: Start) -> None:
    engine = await start()
    events = await engine.events("/v1/completions", prompt="hello", max_tokens=3)
    assert len(events) == 3
    assert all("usage" not in event for event in events)
    assert events[-1]["choices"][0]["finish_reason"] == "length"


async def test_metrics_are_the_sum_of_usage(start: Start) -> None:
    engine = await start("--speedup", "20")
    question = "tell me of the sea " * 20
    bodies = [
        {"prompt": f"{question} {number}", "max_tokens": 5 + number, "n": 1 + number % 3}
        for number in range(20)
    ]
    bodies += [{"prompt": question + "again", "max_tokens": 60, "stop": ["a", "e"]}]
    answers = [await engine.complete(**bodies[0])]
    answers += await asyncio.gather(*(engine.complete(**body) for body in bodies[1:]))
    usage = [answer["usage"] for answer in answers]
    assert answers[-1]["choices"][0]["finish_reason"] == "stop"
    assert usage[-1]["completion_tokens"] < 60
    # As vLLM does, the counter has a prompt once per choice, usage has it once.
    counted = sum(u["prompt_tokens"] * body.get("n", 1) for u, body in zip(usage, bodies, strict=True))
    assert await engine.metric("vllm:prompt_tokens_total") == counted
    assert await engine.metric("vllm:generation_tokens_total") == sum(u["completion_tokens"] for u in usage)
    cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usage)
    assert cached > 0
    assert cached <= await engine.metric("vllm:prompt_tokens_cached_total") < counted
    assert await engine.metric("vllm:num_requests_running") == 0
    assert await engine.metric("vllm:kv_cache_usage_perc") == 0


async def test_stop_string_is_cut_from_a_stream_too(start: Start) -> None:
    engine = await start("--speedup", "20")
    whole = (await engine.complete(prompt="say it", max_tokens=40))["choices"][0]["text"]
    stop = whole[50:56]
    events = await engine.events("/v1/completions", prompt="say it", max_tokens=40, stop=stop)
    shown = "".join(event["choices"][0]["text"] for event in events)
    assert shown == whole[: whole.index(stop)]
    assert events[-1]["choices"][0] | {"text": ""} == {
        "index": 0, "text": "", "logprobs": None, "finish_reason": "stop", "stop_reason": stop,
        "prompt_token_ids": None, "token_ids": None,
    }  # fmt: skip


async def test_answers_depend_on_seed_alone(start: Start) -> None:
    engine = await start("--speedup", "50")
    texts = [
        (await engine.complete(prompt="same", max_tokens=12, seed=seed))["choices"][0]["text"]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


async def test_a_client_that_leaves_frees_its_sequence(start: Start) -> None:
    engine = await start()
    answer = await engine.client.post(
        f"{engine.url}/v1/completions",
        json={"model": MODEL, "prompt": "x", "max_tokens": 2000, "stream": True},
    )
    await answer.content.readline()
    assert await engine.metric("vllm:num_requests_running") == 1
    answer.close()

    async def idle() -> bool:
        return await engine.metric("vllm:num_requests_running") == 0

    await until(idle, 2.0)
    assert await engine.metric("vllm:kv_cache_usage_perc") == 0
    assert await engine.metric("vllm:generation_tokens_total") < 2000


async def test_a_client_that_leaves_without_streaming_frees_its_sequence_too(start: Start) -> None:
    engine = await start()
    request = asyncio.create_task(engine.complete(prompt="x", max_tokens=2000))

    async def running() -> bool:
        return await engine.metric("vllm:num_requests_running") == 1

    await until(running)
    request.cancel()

    async def idle() -> bool:
        return await engine.metric("vllm:num_requests_running") == 0

    await until(idle, 2.0)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "other", "prompt": "x"}, 404),
        ({"model": MODEL, "prompt": "x", "max_tokens": 70_000}, 400),
        ({"model": MODEL, "prompt": "x" * 300_000}, 400),
        ({"model": MODEL, "prompt": 7}, 400),
        ({"model": MODEL, "prompt": "x", "n": 1000}, 400),
        ({"model": MODEL, "prompt": "x", "cache_salt": "ab/cd+=="}, 400),
        ({"model": MODEL, "prompt": "x", "cache_salt": "a" * 129}, 400),
    ],
)
async def test_refusals_have_vllms_error_object(start: Start, body: dict[str, Any], status: int) -> None:
    engine = await start()
    async with engine.client.post(f"{engine.url}/v1/completions", json=body) as answer:
        assert answer.status == status
        assert msgspec.json.decode(await answer.read())["error"]["code"] == status


async def test_key_guards_all_but_health(start: Start) -> None:
    engine = await start()
    async with aiohttp.ClientSession() as stranger:
        for path, status in [("/health", 200), ("/metrics", 200), ("/v1/models", 401), ("/failpoints", 401)]:
            async with stranger.get(engine.url + path) as answer:
                assert answer.status == status, path
    async with engine.client.get(f"{engine.url}/v1/models") as answer:
        assert answer.headers["x-penstock-simulated"] == "1"
        assert (await answer.json())["data"][0]["max_model_len"] == 65536


async def test_tokenize_counts_what_usage_counts(start: Start) -> None:
    engine = await start()
    messages = [{"role": "user", "content": [{"type": "text", "text": "how many?"}]}]
    async with engine.client.post(
        f"{engine.url}/tokenize", json={"model": MODEL, "messages": messages}
    ) as answer:
        counted = (await answer.json())["count"]
    body = {"model": MODEL, "messages": messages, "max_tokens": 1}
    async with engine.client.post(f"{engine.url}/v1/chat/completions", json=body) as answer:
        assert (await answer.json())["usage"]["prompt_tokens"] == counted


async def test_failpoints_die_after_tokens(start: Start) -> None:
    engine = await start("--failpoints", "die_after_tokens=10")
    received: list[bytes] = []

    async def read() -> None:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 100, "stream": True}
        async with engine.client.post(f"{engine.url}/v1/completions", json=body) as answer:
            async for chunk in answer.content.iter_any():
                received.append(chunk)

    with pytest.raises(aiohttp.ClientError):
        await read()
    assert b"".join(received).count(b"data: ") == 10
    assert await engine.process.wait() == DEATH_CODE


async def test_failpoints_errors_and_drops(start: Start) -> None:
    engine = await start()
    await engine.failpoints(error_next=1)
    async with engine.client.post(
        f"{engine.url}/v1/completions", json={"model": MODEL, "prompt": "x"}
    ) as answer:
        assert answer.status == 500
    await engine.failpoints(drop_next=1)
    with pytest.raises(aiohttp.ClientError):
        await engine.complete(prompt="x")
    await engine.failpoints(no_usage=True)
    assert "usage" not in await engine.complete(prompt="x")
    await engine.failpoints()
    assert (await engine.complete(prompt="x"))["usage"]["completion_tokens"] == 16


async def test_failpoint_stall_keeps_the_connection(start: Start) -> None:
    engine = await start()
    await engine.failpoints(stall_after_tokens=5)
    request = asyncio.create_task(engine.complete(prompt="x", max_tokens=20))

    async def stalled() -> bool:
        return await engine.metric("vllm:generation_tokens_total") == 5

    await until(stalled)
    assert not request.done()
    await engine.failpoints()
    assert (await request)["usage"]["completion_tokens"] == 20


async def test_asleep_it_answers_health_and_takes_no_work(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "own")
    engine = await start()
    agent = {KEY_HEADER: "own"}
    async with engine.client.post(f"{engine.url}/sleep?level=2", headers=agent) as answer:
        assert answer.status == 200
    async with engine.client.post(f"{engine.url}/v1/completions", json={"prompt": "x"}) as answer:
        assert answer.status == 503
    body = {"prompt": "x", "max_tokens": 16}
    request = asyncio.create_task(said(engine, body, agent))  # past the guard, it waits

    async def waiting() -> bool:
        return await engine.metric("vllm:num_requests_waiting") == 1

    await until(waiting)
    async with engine.client.get(f"{engine.url}/health") as answer:
        assert answer.status == 200
    async with engine.client.get(f"{engine.url}/is_sleeping", headers=agent) as answer:
        assert (await answer.json()) == {"is_sleeping": True}
    async with engine.client.post(f"{engine.url}/wake_up", headers=agent) as answer:
        assert answer.status == 200
    assert "!?!" in await request  # level 2 takes three steps
    body = {"method": "reload_weights"}
    async with engine.client.post(f"{engine.url}/collective_rpc", json=body, headers=agent) as answer:
        assert answer.status == 200
    assert "!?!" not in await said(engine, {"prompt": "x", "max_tokens": 16}, {})


async def said(engine: Engine, body: dict[str, Any], headers: dict[str, str]) -> str:
    async with engine.client.post(f"{engine.url}/v1/completions", json=body, headers=headers) as answer:
        return str((await answer.json())["choices"][0]["text"])


async def test_sigterm_finishes_what_runs(start: Start) -> None:
    engine = await start()
    request = asyncio.create_task(engine.complete(prompt="x", max_tokens=100))

    async def running() -> bool:
        return await engine.metric("vllm:num_requests_running") == 1

    await until(running)
    engine.process.send_signal(signal.SIGTERM)
    assert (await request)["usage"]["completion_tokens"] == 100
    assert await engine.process.wait() in (0, -signal.SIGTERM)


async def test_every_profile_of_the_catalog_can_be_simulated(start: Start) -> None:
    engine = await start("--model", "llama-3.3-70b", "--profile", "tp2-spec", "--speedup", "100")
    async with engine.client.post(
        f"{engine.url}/v1/completions", json={"model": "llama-3.3-70b", "prompt": "x", "max_tokens": 50}
    ) as answer:
        assert (await answer.json())["usage"]["completion_tokens"] == 50


async def test_unknown_model_is_one_line() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sim.engine", "--model", "nope", stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert errors.decode().startswith("error: the catalog has no model 'nope'; it has: ")


async def test_an_interval_joins_tokens_but_not_the_first_and_the_last(start: Start) -> None:
    engine = await start("--speedup", "20")
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"prompt": "hello", "max_tokens": 20, "seed": 3, "stream_options": options}
    plain = await engine.events("/v1/completions", **asked)
    events = await engine.events("/v1/completions", **asked, stream_interval=6)
    counts = [event["usage"]["completion_tokens"] for event in events if event["choices"]]
    assert counts == [1, 7, 13, 19, 20]
    texts = ["".join(one["choices"][0]["text"] for one in each if one["choices"]) for each in (plain, events)]
    assert texts[0] == texts[1]
    assert events[-1]["usage"] == plain[-1]["usage"]
    assert await EngineApi(engine.client, engine.url, "secret").takes_stream_interval()


ONE_SEAT = """
[hosts."local"]
gpus = 0
gpu = ""
gpu_memory_gb = 0

[models."penstock/tiny"]
title = "One at a time"
hub_id = "none/none"
license = "none"
context_len = 4096
capabilities = ["completions"]
weights_gb = 0

[models."penstock/tiny".list_price]
input = "1"
cached_input = "1"
output = "1"
reasoning = "1"
date = 2026-01-01
source = "none"

[models."penstock/tiny".profiles.one]
engine = "vllm"
host_kind = "local"
gpus = 0
args.scheduling-policy = "{policy}"

[models."penstock/tiny".profiles.one.figures]
prefill_tokens_per_s = {{ value = 100000, basis = "assumed", date = 2026-01-01, source = "none" }}
step_base_s = {{ value = 0.01, basis = "assumed", date = 2026-01-01, source = "none" }}
step_per_seq_s = {{ value = 0.0001, basis = "assumed", date = 2026-01-01, source = "none" }}
max_num_seqs = {{ value = 1, basis = "assumed", date = 2026-01-01, source = "none" }}
kv_cache_tokens = {{ value = 8192, basis = "assumed", date = 2026-01-01, source = "none" }}
"""


@pytest.mark.parametrize(("policy", "order"), [("priority", [0, 1, 2]), ("fcfs", [2, 1, 0])])
async def test_requests_with_a_priority_overtake_where_the_profile_says_so(
    start: Start, tmp_path: Path, policy: str, order: list[int]
) -> None:
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(ONE_SEAT.format(policy=policy))
    engine = await start("--catalog", str(catalog))
    ended: list[int] = []

    async def ask(priority: int, tokens: int) -> None:
        await engine.complete(prompt="x", max_tokens=tokens, ignore_eos=True, priority=priority)
        ended.append(priority)

    async def waiting(count: int) -> None:
        async def queued() -> bool:
            return await engine.metric("vllm:num_requests_waiting") == count

        await until(queued)

    async def running() -> bool:
        return await engine.metric("vllm:num_requests_running") == 1

    tasks = [asyncio.create_task(ask(9, 300))]
    await until(running)
    for place, priority in enumerate((2, 1, 0)):
        tasks.append(asyncio.create_task(ask(priority, 5)))
        await waiting(place + 1)
    await asyncio.gather(*tasks)
    assert ended == [9, *order]
