"""The main job on the real vLLM: from a customer's key to a row on finance's report.

Two tenants use the official openai package, streaming and not; afterwards the report's tokens equal the
engine's own counters, and its cost equals tokens times price to the picodollar.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import openai
import pytest

from core.money import per_mtok_to_pico_per_token, usd_to_pico
from tests.e2e.conftest import PRICE
from tests.support.invariants import rows_by_request, settled_everything
from tests.support.patience import patiently
from tests.support.reconciling import reconciled, stretches
from tests.support.stack import Stack, Tenant
from tests.support.waiting import until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture
def vllm_stack(stacks: dict[str, Stack]) -> Stack:
    """The platform whose engines nobody asks but the gateway."""
    return stacks["exact"]


def client(stack: Stack, tenant: Tenant) -> openai.AsyncOpenAI:
    """The official client, without retries: every request that billing admits must succeed the first time."""
    return openai.AsyncOpenAI(base_url=stack.base_url, api_key=tenant.key, max_retries=0, timeout=120)


async def run_plain(api: openai.AsyncOpenAI, model: str, text: str) -> Any:
    """One chat request without streaming; returns its usage."""
    answer = await patiently(
        lambda: api.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], max_tokens=24, seed=7
        )
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    return answer.usage


async def run_stream(api: openai.AsyncOpenAI, model: str, text: str) -> Any:
    """One streamed chat request that asks for usage; returns it."""
    usage, pieces = None, []
    stream = await patiently(
        lambda: api.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": text}],
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    async for event in stream:
        pieces += [choice.delta.content or "" for choice in event.choices]
        usage = event.usage or usage
    assert "".join(pieces)
    assert usage is not None
    return usage


async def run_completion(api: openai.AsyncOpenAI, model: str, text: str) -> Any:
    """One text completion; returns its usage."""
    answer = await patiently(lambda: api.completions.create(model=model, prompt=text, max_tokens=16))
    assert answer.usage is not None
    return answer.usage


def report(stack: Stack, by: str, **filters: str) -> list[dict[str, Any]]:
    """The usage report of today and tomorrow (a run may cross midnight) through the admin REST."""
    today = datetime.now(UTC).date()
    days = {"from": str(today - timedelta(days=1)), "to": str(today + timedelta(days=2))}
    answer = stack.admin("GET", "/usage/report", params={**days, "by": by, **filters})
    return list(answer["data"])


@pytest.mark.promise(15)
async def test_tokens_equal_the_engine_and_cost_equals_tokens_times_price(vllm_stack: Stack) -> None:
    stack, model = vllm_stack, str(vllm_stack.ready["model"])
    tenants = [stack.make_tenant("Aqua"), stack.make_tenant("Brook")]
    before = stack.engine_counters()

    kinds: list[Callable[..., Any]] = [run_plain, run_stream, run_completion]
    runs, owners = [], []
    for round_number in range(4):
        for tenant in tenants:
            for run in kinds:
                # The same long prompt twice per tenant: the second run meets a warm prefix cache.
                text = "Tell me of the river. " * 40 + str(round_number // 2)
                runs.append((run, tenant, text))
                owners.append(tenant.id)
    apis = {tenant.id: client(stack, tenant) for tenant in tenants}
    usages = []
    for start in range(0, len(runs), 6):
        batch = [run(apis[tenant.id], model, text) for run, tenant, text in runs[start : start + 6]]
        usages += await asyncio.gather(*batch)
    for api in apis.values():
        await api.close()

    database = await stack.connect()
    try:

        async def settled() -> bool:
            ids = [tenant.id for tenant in tenants]
            return len(runs) == await database.fetchval(
                "SELECT count(*) FROM usage WHERE tenant_id = ANY($1::uuid[])", ids
            )

        await until(settled)
    finally:
        await database.close()

    rows = [row for row in report(stack, "tenant,project,key,model,day") if row["tenant_id"] in apis]
    prompt = sum(int(row["input_tokens"]) for row in rows)
    output = sum(int(row["output_tokens"]) for row in rows)
    assert prompt == sum(usage.prompt_tokens for usage in usages)
    assert output == sum(usage.completion_tokens for usage in usages)

    after = stack.engine_counters()
    assert prompt == after["prompt_tokens_total"] - before["prompt_tokens_total"]
    assert output == after["generation_tokens_total"] - before["generation_tokens_total"]

    price = {name: per_mtok_to_pico_per_token(text) for name, text in PRICE.items()}
    for row in rows:
        cached = int(row["cached_input_tokens"])
        expected = (
            (int(row["input_tokens"]) - cached) * price["input"]
            + cached * price["cached_input"]
            + int(row["output_tokens"]) * price["output"]
        )
        assert usd_to_pico(row["cost_usd"]) == expected
    assert sum(int(row["requests"]) for row in rows) == len(runs)
    assert sum(int(row["cached_input_tokens"]) for row in rows) > 0, "the prefix cache never hit"


async def leave(api: openai.AsyncOpenAI, model: str) -> int:
    """A stream whose client leaves after some tokens; returns how many events it saw."""
    stream = await patiently(
        lambda: api.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell me of the sea."}],
            max_tokens=1500,
            stream=True,
            extra_body={"temperature": 1.0},
        )
    )
    seen = 0
    async for _ in stream:
        seen += 1
        if seen == 20:
            break
    await stream.close()
    return seen


def total(stack: Stack, engines: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    """The lines of several engines by counter, added up."""
    totals: dict[str, Counter[str]] = {"prompt": Counter(), "generation": Counter()}
    for engine in engines:
        for counter, lines in stretches(stack, engine["boot_id"]).items():
            totals[counter].update(lines)
    return totals


async def test_engine_counters_are_explained_with_several_choices_and_a_client_that_leaves(
    vllm_stack: Stack,
) -> None:
    stack, model = vllm_stack, str(vllm_stack.ready["model"])
    tenant = stack.make_tenant("Cove")
    before = total(stack, await reconciled(stack))
    async with client(stack, tenant) as api:
        answer = await patiently(
            lambda: api.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "Two words?"}], max_tokens=8, n=2
            )
        )
        assert len(answer.choices) == 2
        assert answer.usage is not None
        usage = await run_stream(api, model, "Tell me of the well.")
        assert await leave(api, model) == 20
    await settled_everything(stack, tenant.id)
    engines = await reconciled(stack)
    assert {(one["unexplained_prompt"], one["unexplained_generation"]) for one in engines} == {(0, 0)}
    after = total(stack, engines)
    # The engine counts the prompt of two choices twice, usage once.
    assert after["prompt"]["choices"] - before["prompt"]["choices"] == answer.usage.prompt_tokens
    rows = await rows_by_request(stack, tenant.id)
    billed = after["generation"]["billed"] - before["generation"]["billed"]
    assert billed == sum(row["output_tokens"] for row in rows.values())
    assert billed >= answer.usage.completion_tokens + usage.completion_tokens + 18
    assert sorted(row["outcome"] for row in rows.values()).count("client_cancelled") == 1
    assert after["generation"]["unobserved"] == before["generation"]["unobserved"]


async def test_every_customer_error_is_one_the_sdk_knows(vllm_stack: Stack) -> None:
    stack, model = vllm_stack, str(vllm_stack.ready["model"])
    poor = stack.make_tenant("Dry", credit_usd="0")
    async with client(stack, poor) as api:
        with pytest.raises(openai.APIStatusError) as refused:
            await run_plain(api, model, "hello")
        assert refused.value.status_code == 402
        assert refused.value.code == "insufficient_quota"
        with pytest.raises(openai.NotFoundError) as missing:
            await run_plain(api, f"{model}x", "hello")
        assert "/v1/models" in missing.value.message
    async with openai.AsyncOpenAI(base_url=stack.base_url, api_key="pen_live_nonsense", max_retries=0) as api:
        with pytest.raises(openai.AuthenticationError):
            await run_plain(api, model, "hello")


async def read_prompts(events: AsyncIterable[Any]) -> tuple[dict[int, list[int]], dict[int, str], Any]:
    """The prompt and the text of each choice of a text completion, by index, and the usage."""
    prompts: dict[int, list[int]] = {}
    texts: dict[int, str] = {}
    usage = None
    async for event in events:
        for choice in event.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if ids := (choice.model_extra or {}).get("prompt_token_ids"):
                prompts[choice.index] = ids
        usage = event.usage or usage
    return prompts, texts, usage


async def test_forty_prompts_of_one_request_are_counted_once(vllm_stack: Stack) -> None:
    """Whole and streamed; the engines get them in three batches."""
    stack, model = vllm_stack, str(vllm_stack.ready["model"])
    tenant = stack.make_tenant("Delta")
    await reconciled(stack)  # what other tests asked for has been counted
    before = stack.engine_counters()
    asked: dict[str, Any] = {
        "model": model,
        "prompt": [f"{'water ' * (1 + number % 5)}{number}" for number in range(40)],
        "max_tokens": 4,
        "extra_body": {"ignore_eos": True, "return_token_ids": True},
    }

    async def once(answer: Any) -> AsyncIterator[Any]:
        yield answer

    async with client(stack, tenant) as api:
        answer = await patiently(lambda: api.completions.create(**asked))
        whole = await read_prompts(once(answer))
        stream = await patiently(
            lambda: api.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        )
        streamed = await read_prompts(stream)
    assert whole[0] == streamed[0]
    assert sorted(whole[0]) == list(range(40))
    assert len({tuple(ids) for ids in whole[0].values()}) == 40, "every choice has a prompt of its own"
    prompt = sum(len(ids) for ids in whole[0].values())
    for _, texts, usage in (whole, streamed):
        assert sorted(texts) == list(range(40))
        assert (usage.prompt_tokens, usage.completion_tokens) == (prompt, 40 * 4)
    await settled_everything(stack, tenant.id)
    rows = await rows_by_request(stack, tenant.id)
    counts = [(row["input_tokens"], row["output_tokens"], row["outcome"]) for row in rows.values()]
    assert counts == [(prompt, 160, "length")] * 2
    await reconciled(stack)
    after = stack.engine_counters()
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == 2 * prompt
    assert after["generation_tokens_total"] - before["generation_tokens_total"] == 2 * 160
