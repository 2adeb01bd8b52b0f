"""What external engines list: how it is found, offered and priced at each start of `penstock up`."""

import msgspec
import pytest

from admin.actor import system_actor
from admin.model_life import retire_model
from admin.models import list_models, set_alias
from admin.prices import list_prices, set_price
from billing.pricing.prices import PriceView
from cli.bootstrap import offer_models
from cli.external import ExternalOptions, discover, offer
from core.clock import SystemClock
from core.db import Database
from core.errors import InvalidRequest, Unavailable
from tests.support.openai_engine import OpenAIEngine
from tests.support.ports import free_port
from workers.catalog import load_catalog
from workers.engine_models import ServedModel
from workers.models import ModelDirectory, ModelSpec

ACTOR = system_actor("penstock up")
CATALOG = load_catalog()
LLAMA = ServedModel("meta-llama/Llama-3.1-8B", 8192)
PLAIN = ServedModel("plain")
PRICED = ExternalOptions(price_input="0.20", price_output="0.60")


async def versions(database: Database, model: str) -> list[PriceView]:
    return await list_prices(database, ACTOR, model=model, history=True)


async def test_models_of_two_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        OpenAIEngine({"a": {"max_model_len": 8192}, "b": {}}, key="secret") as one,
        OpenAIEngine({"a": {"max_model_len": 4096}, "c": {"max_model_len": 100}}, key="secret") as two,
    ):
        options = ExternalOptions(urls=(one.url, two.url), key="secret")
        found = await discover(options, "", SystemClock(), lambda note: None)
        assert found == [ServedModel("a", 4096), ServedModel("b"), ServedModel("c", 100)]
        assert await discover(options, "c", SystemClock(), lambda note: None) == [ServedModel("c", 100)]
        with pytest.raises(InvalidRequest, match="no engine lists the model 'd'; listed: a, b, c"):
            await discover(options, "d", SystemClock(), lambda note: None)


@pytest.mark.parametrize(
    ("models", "key", "message"),
    [
        ({"a": {}}, "", "requires an API key .*PENSTOCK_ENGINE_KEY or give --engine-key-file"),
        ({"a": {}}, "wrong-key", "refuses the API key"),
        ({}, "secret", "lists no models; load one"),
    ],
)
async def test_an_engine_that_cannot_be_used(
    models: dict[str, dict[str, int]], key: str, message: str
) -> None:
    with OpenAIEngine(models, key="secret") as engine:
        with pytest.raises(InvalidRequest, match=message) as caught:
            await discover(ExternalOptions(urls=(engine.url,), key=key), "", SystemClock(), lambda note: None)
        assert "wrong-key" not in caught.value.message


async def test_something_else_behind_the_address() -> None:
    with OpenAIEngine({"a": {}}) as engine:
        options = ExternalOptions(urls=(f"{engine.url}/elsewhere",))
        with pytest.raises(InvalidRequest, match="answered 404 to GET /v1/models"):
            await discover(options, "", SystemClock(), lambda note: None)


async def test_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.external.START_WAIT_S", 0.1)
    notes: list[str] = []
    options = ExternalOptions(urls=(f"http://127.0.0.1:{free_port()}",))
    with pytest.raises(Unavailable, match="no engine answers at http://127") as caught:
        await discover(options, "", SystemClock(), notes.append)
    assert notes
    assert "\n" not in caught.value.message


async def test_prices_are_versions_and_equal_ones_stay(database: Database) -> None:
    for _ in range(2):
        assert await offer(database, ACTOR, CATALOG, [LLAMA], PRICED, demo=True) == []
    [first] = await versions(database, LLAMA.name)
    assert (first.input, first.cached_input, first.output, first.reasoning) == (
        "0.20",
        "0.20",
        "0.60",
        "0.60",
    )
    changed = msgspec.structs.replace(PRICED, price_output="0.70", price_cached_input="0.02")
    await offer(database, ACTOR, CATALOG, [LLAMA], changed, demo=True)
    before, after = await versions(database, LLAMA.name)
    assert (before.id, before.status, before.effective_to) == (first.id, "ended", after.effective_from)
    assert (after.cached_input, after.output, after.status) == ("0.02", "0.70", "current")
    await offer(database, ACTOR, CATALOG, [LLAMA], ExternalOptions(), demo=True)  # no prices: these stay
    assert len(await versions(database, LLAMA.name)) == 2


async def test_without_prices_the_demo_has_its_own(database: Database) -> None:
    [note] = await offer(database, ACTOR, CATALOG, [LLAMA], ExternalOptions(), demo=True)
    assert note.startswith(f"Demo price for {LLAMA.name}: 0.10 dollars per million input tokens")
    [price] = await versions(database, LLAMA.name)
    assert (price.input, price.cached_input, price.output) == ("0.10", "0.02", "0.40")


async def test_without_prices_and_demo_nothing_is_served(database: Database) -> None:
    with pytest.raises(InvalidRequest, match="has no price: give --price-input and --price-output"):
        await offer(database, ACTOR, CATALOG, [LLAMA], ExternalOptions(), demo=False)
    await set_price(database, ACTOR, model=LLAMA.name, input="1", output="2")
    assert await offer(database, ACTOR, CATALOG, [LLAMA], ExternalOptions(), demo=False) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ExternalOptions(price_input="1"), "go together"),
        (ExternalOptions(price_cached_input="1"), "go together"),
        (ExternalOptions(price_input="a", price_output="1"), "input"),
        (ExternalOptions(price_input="1", price_output="-1"), "negative"),
        (ExternalOptions(price_input="0.0000001", price_output="1"), "6 decimals"),
    ],
)
def test_prices_that_are_none(options: ExternalOptions, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        _ = options.rates


async def test_the_context_length(database: Database) -> None:
    [note] = await offer(database, ACTOR, CATALOG, [LLAMA, PLAIN], PRICED, demo=True)
    assert note == (
        "No context length is stated for plain: 131,072 tokens are assumed (--context-len sets it)."
    )
    stated = msgspec.structs.replace(PRICED, context_len=2000)
    assert await offer(database, ACTOR, CATALOG, [LLAMA, PLAIN], stated, demo=True) == []
    specs = {model.name: model.spec for model in await list_models(database, ACTOR)}
    assert specs == {LLAMA.name: ModelSpec(8192, 8192), "plain": ModelSpec(2000, 2000)}


async def test_a_model_that_is_no_longer_listed_stays_known(database: Database) -> None:
    await offer(database, ACTOR, CATALOG, [LLAMA, PLAIN], PRICED, demo=True)
    await offer(database, ACTOR, CATALOG, [PLAIN], PRICED, demo=True)
    directory = ModelDirectory(database)
    await directory.refresh()
    assert directory.resolve(LLAMA.name).context_len == 8192
    assert [price.status for price in await versions(database, LLAMA.name)] == ["current"]


async def test_a_model_of_the_catalog_keeps_its_description_and_price(database: Database) -> None:
    await offer_models(database, ACTOR, CATALOG)
    tiny = ServedModel("penstock/tiny", 512)
    assert await offer(database, ACTOR, CATALOG, [tiny], ExternalOptions(), demo=False) == []
    directory = ModelDirectory(database)
    await directory.refresh()
    assert directory.resolve("penstock/tiny").context_len == 65536


async def test_names_that_cannot_be_offered(database: Database) -> None:
    await offer(database, ACTOR, CATALOG, [LLAMA, PLAIN], PRICED, demo=True)
    await set_alias(database, ACTOR, name="latest", target=LLAMA.name)
    await retire_model(database, ACTOR, name="plain")
    served = [LLAMA, PLAIN, ServedModel("latest", 10), ServedModel("My Models/x.gguf", 10)]
    notes = await offer(database, ACTOR, CATALOG, served, PRICED, demo=True)
    assert [note.split(" is not offered")[0] for note in notes] == [
        "The model 'plain'", "The model 'latest'", "The model 'My Models/x.gguf'",
    ]  # fmt: skip
    assert await versions(database, "latest") == []


async def test_embedding_models_are_those_that_the_operator_names(database: Database) -> None:
    embeds = msgspec.structs.replace(PRICED, embeddings=("plain", "penstock/tiny"))
    await offer_models(database, ACTOR, CATALOG)
    directory = ModelDirectory(database)
    for options, capabilities in (
        (embeds, ("embeddings",)),
        (PRICED, ("chat", "completions", "tools", "json", "logprobs")),
        (embeds, ("embeddings",)),
    ):
        await offer(
            database, ACTOR, CATALOG, [LLAMA, PLAIN, ServedModel("penstock/tiny")], options, demo=True
        )
        await directory.refresh()
        assert directory.resolve("plain").capabilities == capabilities
        assert "chat" in directory.resolve(LLAMA.name).capabilities
        assert "chat" in directory.resolve("penstock/tiny").capabilities  # the catalog describes it
    with OpenAIEngine({"a": {}}) as engine:
        options = ExternalOptions(urls=(engine.url,), embeddings=("b",))
        with pytest.raises(InvalidRequest, match="--embeddings names 'b', which no engine lists; listed: a"):
            await discover(options, "", SystemClock(), lambda note: None)
