"""The official clients that the test environment has, over every route: their scripts of `make compat`, and embeddings.

A second host serves the embedding model beside the platform's own engines.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from core.money import per_mtok_to_pico_per_token, usd_to_pico
from tests.compat.play import environment, run_script
from tests.compat.target import EMBEDDING_MODEL, target_of
from tests.compat.tools import SCRIPTS
from tests.support.invariants import money_is_sound, rows_by_request, settled_everything
from tests.support.patience import patiently
from tests.support.second_host import second_host
from tests.support.stack import Stack
from tests.support.waiting import until
from workers.catalog import load_catalog

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def platform(stacks: dict[str, Stack], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A platform that serves the embedding model, too."""
    with second_host(stacks["mirrored"], tmp_path_factory.mktemp("second") / "data", EMBEDDING_MODEL):
        yield stacks["mirrored"]


@pytest.mark.parametrize("script", ["openai_python.py", "anthropic_python.py"])
def test_the_official_clients_work_unchanged(platform: Stack, tmp_path: Path, script: str) -> None:
    target = target_of(platform, f"Compatibility {script}")
    env = environment(str(Path(sys.executable).parent), tmp_path, target)
    command = [sys.executable, str(SCRIPTS / script)]
    features = run_script(command, env, limit_s=600)
    assert len(features) >= 9
    failed = {each.feature: each for each in features if not each.ok}
    if failed:  # the model answers at random: what fails for that reason does not fail twice
        again = {each.feature: each for each in run_script(command, env, limit_s=600)}
        assert [(each, again[name]) for name, each in failed.items() if not again[name].ok] == []


async def test_embeddings_are_those_of_the_engine_and_billed_by_its_count(platform: Stack) -> None:
    tenant = platform.make_tenant("Embeddings")
    price = per_mtok_to_pico_per_token(load_catalog().model(EMBEDDING_MODEL).list_price.input)
    async with openai.AsyncOpenAI(base_url=platform.base_url, api_key=tenant.key, max_retries=0) as api:
        raw = await patiently(
            lambda: api.embeddings.with_raw_response.create(model=EMBEDDING_MODEL, input=[[5, 6, 7], [8]])
        )
        tokens = raw.parse()  # the client asks for base64 and unpacks it
        floats = await patiently(
            lambda: api.embeddings.create(model=EMBEDDING_MODEL, input=[[8]], encoding_format="float")
        )
        with pytest.raises(openai.BadRequestError) as refused:
            await api.embeddings.create(model=EMBEDDING_MODEL, input=[[1] * 8193])
    assert [each.index for each in tokens.data] == [0, 1]
    assert sum(number**2 for number in tokens.data[0].embedding) == pytest.approx(1, abs=1e-3)
    assert tokens.data[1].embedding == pytest.approx(floats.data[0].embedding, abs=1e-3)
    assert tokens.data[0].embedding != pytest.approx(tokens.data[1].embedding, abs=0.1)
    assert (tokens.usage.prompt_tokens, tokens.usage.total_tokens) == (4, 4)
    assert usd_to_pico(raw.headers["x-penstock-cost-usd"]) == 4 * price
    assert refused.value.code == "context_length_exceeded"
    await settled_everything(platform, tenant.id)

    async def all_rows() -> bool:
        return len(await rows_by_request(platform, tenant.id)) >= 2

    await until(all_rows)
    rows = await rows_by_request(platform, tenant.id)
    row = rows[raw.headers["x-request-id"]]
    assert (row["input_tokens"], row["output_tokens"], row["cost"]) == (4, 0, 4 * price)
    await money_is_sound(platform, tenant.id)
