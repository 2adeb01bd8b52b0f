"""tokenize and detokenize: vLLM's requests and answers, computed by the model's own tokenizer."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from core.errors import InvalidRequest, RateLimited, RequestTooLarge, Unavailable, UnsupportedField
from core.ids import uuid7
from gateway import limits
from gateway.parsing.worker import PARSERS, answer, decode_reply
from gateway.sandbox import Sandbox
from gateway.schemas.common import PreparedRequest
from gateway.schemas.tokenize import parse_detokenize, parse_tokenize
from gateway.token_counts import SAMPLE_CONTEXT, TokenCounts
from gateway.tokenization import listing
from gateway.tokenization.listing import tokens_document, unpacked
from gateway.tokenization.model_tokenizer import ModelTokenizer, PromptTokenizer
from gateway.tokenization.text_encoder import TokenCache, TokenizationError
from scheduler.wire import PoolSnapshot
from tests.support.gateway_fakes import FakeModel, FakeModels, FakeRates, principal
from workers.token_blocks import packed

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if tools %}{{ tools[0].function.name }}{% endif %}"
    "{% if enable_thinking %}think{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WORDS = ["<s>", "<|user|>", "<|assistant|>", "river", "sea", "look", "think", "[unk]", "longest" * 20]
USER, ASSISTANT, RIVER, SEA, LOOK, THINK, LONGEST = 1, 2, 3, 4, 5, 6, 8
SAID = [{"role": "user", "content": "river"}]
TOOL = {"type": "function", "function": {"name": "look"}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    """Knows a few words. The id 9 is free and 10 the highest."""
    directory = tmp_path_factory.mktemp("model")
    vocabulary = {word: number for number, word in enumerate(WORDS)} | {"end": 10}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[unk]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in WORDS[:3]])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return ModelTokenizer(directory, "m", TokenCache(), lambda: datetime(2026, 3, 1, tzinfo=UTC))


class OneTokenizer:
    """Runs everything at once with one tokenizer, or raises `reason`."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self.tokenizer = tokenizer
        self.reason = ""

    async def loaded(self, model: str, wait_s: float) -> None:
        await asyncio.sleep(0)

    async def run(
        self, model: str, size: int, work: Callable[[PromptTokenizer], Any], *, simulated: bool
    ) -> Any:
        assert (model, simulated) == ("tiny", False)
        if self.reason:
            raise TokenizationError(self.reason)
        return work(self.tokenizer)


class Platform:
    """What answers the requests, with one model."""

    def __init__(self, tokenizer: PromptTokenizer, **model: Any) -> None:
        models, self.rates = FakeModels(FakeModel(**model)), FakeRates()
        self.tokenizers = OneTokenizer(tokenizer)
        sandbox = Sandbox(models, self.rates)
        snapshot = PoolSnapshot()
        self.counts = TokenCounts(models, self.rates, self.tokenizers, sandbox, lambda: snapshot)

    async def tokenize(self, kind: str = "live", **fields: Any) -> dict[str, Any]:
        return await self._ask(self.counts.tokenize, parse_tokenize, kind, fields)

    async def detokenize(self, tokens: list[int], kind: str = "live") -> str:
        found = await self._ask(self.counts.detokenize, parse_detokenize, kind, {"tokens": tokens})
        return str(found["prompt"])

    async def _ask(self, act: Any, parse: Any, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        prepared = parse(json.dumps({"model": "tiny", **fields}).encode())
        found: dict[str, Any] = json.loads(await act(uuid7(), principal(kind=kind), prepared))
        return found


@pytest.fixture
def platform(tokenizer: ModelTokenizer) -> Platform:
    return Platform(tokenizer)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"prompt": "river sea"}, [0, RIVER, SEA]),
        ({"prompt": "river sea", "add_special_tokens": False}, [RIVER, SEA]),
        ({"prompt": ""}, [0]),
        ({"prompt": "", "add_special_tokens": False}, []),
        ({"messages": SAID}, [USER, RIVER, ASSISTANT]),
        ({"messages": SAID, "add_generation_prompt": False}, [USER, RIVER]),
        ({"messages": SAID, "add_special_tokens": True}, [0, USER, RIVER, ASSISTANT]),
        ({"messages": SAID, "tools": [TOOL], "add_generation_prompt": False}, [USER, 7]),
        ({"messages": SAID, "enable_thinking": True}, [USER, 7, ASSISTANT]),
    ],
)
async def test_tokens(tokenizer: ModelTokenizer, fields: dict[str, Any], tokens: list[int]) -> None:
    switches: dict[str, tuple[bool | int | str, ...]] = {"enable_thinking": (True, False)}
    platform = Platform(tokenizer, context_len=512, capabilities=("embeddings",), template_switches=switches)
    found = await platform.tokenize(**fields)
    assert found == {"count": len(tokens), "max_model_len": 512, "tokens": tokens, "token_strs": None}
    assert platform.rates.estimates == platform.rates.settled == [(0, 0)]


async def test_names_of_tokens_and_their_text(platform: Platform) -> None:
    found = await platform.tokenize(prompt="river <|user|> sea", return_token_strs=True)
    assert found["token_strs"] == ["<s>", "river", "<|user|>", "sea"]
    assert await platform.detokenize(found["tokens"]) == "<s>river<|user|>sea"
    assert await platform.detokenize([]) == ""


async def test_a_count_is_the_length_of_the_list(platform: Platform) -> None:
    prepared = parse_tokenize(json.dumps({"model": "tiny", "messages": SAID}).encode())
    assert await platform.counts.count(uuid7(), principal(), prepared) == 3


@pytest.mark.parametrize("token", [9, 11, 2**31 - 1])
async def test_a_token_that_there_is_not(platform: Platform, token: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await platform.detokenize([RIVER, token])
    assert refused.value.param == "tokens"
    assert f"The token id {token}" in refused.value.message
    assert "11 ids" in refused.value.message
    assert len(platform.rates.settled) == 1


async def test_what_is_too_long(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_LISTED_TOKENS", 3)
    assert (await platform.tokenize(prompt="river sea"))["count"] == 3
    with pytest.raises(RequestTooLarge) as listed:
        await platform.tokenize(prompt="river sea look")
    assert listed.value.param == "prompt"
    monkeypatch.setattr("gateway.tokenization.text_encoder.MAX_DETOKENIZED_CHARS", 300)
    assert len(await platform.detokenize([LONGEST, LONGEST])) == 280
    with pytest.raises(RequestTooLarge) as text:
        await platform.detokenize([LONGEST] * 3)
    assert text.value.param == "tokens"
    with pytest.raises(RequestTooLarge):
        parse_detokenize(
            json.dumps({"model": "m", "tokens": [1] * (limits.MAX_DETOKENIZED_TOKENS + 1)}).encode()
        )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": SAID}, "messages"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "a", "tools": [TOOL]}, "tools"),
        ({"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        ({"messages": []}, "messages"),
        ({"messages": SAID, "chat_template": "{{ x }}"}, "chat_template"),
        ({"messages": SAID, "continue_final_message": True}, "continue_final_message"),
        ({"messages": SAID, "add_generation_promt": False}, "add_generation_promt"),
    ],
)
def test_invalid_bodies(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_tokenize(json.dumps({"model": "m", **fields}).encode())
    assert refused.value.param == param


async def test_images_and_switches_are_checked(platform: Platform) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}
    with pytest.raises(UnsupportedField) as refused:
        await platform.tokenize(messages=[{"role": "user", "content": [image]}])
    assert refused.value.code == "unsupported_content"
    with pytest.raises(UnsupportedField):
        await platform.tokenize(messages=SAID, chat_template_kwargs={"other": True})


def test_a_body_of_chat_is_taken_as_it_is() -> None:
    body = {
        "model": "m",
        "messages": SAID,
        "max_tokens": 9,
        "stream": True,
        "tool_choice": "auto",
        "n": 2,
        "odd": 1,
    }
    prepared = parse_tokenize(json.dumps(body).encode())
    assert prepared.ignored_fields == ("odd",)
    assert not prepared.stream
    assert set(prepared.fields) == {"messages"}


async def test_what_the_tokenizer_cannot_do(platform: Platform) -> None:
    for reason, kind in (
        ("busy", Unavailable),
        ("no_tokenizer", Unavailable),
        ("template_failed", InvalidRequest),
    ):
        platform.tokenizers.reason = reason
        with pytest.raises(kind):
            await platform.tokenize(messages=SAID)
    platform.rates.refuse = RateLimited("no")
    with pytest.raises(RateLimited):
        await platform.detokenize([1])


async def test_a_test_key_gets_as_many_tokens_as_its_answers_say(platform: Platform) -> None:
    found = await platform.tokenize("test", model="test/ok", prompt="x" * 40, return_token_strs=True)
    assert found["tokens"] == list(range(found["count"]))
    assert (found["max_model_len"], found["token_strs"][1]) == (SAMPLE_CONTEXT, "token1 ")
    assert await platform.detokenize([5, 6, 7, 8], "test") == "token0 token1 token2 token3 "
    with pytest.raises(RequestTooLarge) as refused:
        await platform.tokenize("test", prompt="x" * 4 * (SAMPLE_CONTEXT + 1))
    assert refused.value.param == "prompt"


def test_long_lists_are_encoded_without_a_gap() -> None:
    tokens = list(range(10_000))
    found = msgspec.json.decode(tokens_document(tokens, [str(token) for token in tokens], 7))
    assert (found["tokens"], found["count"]) == (tokens, 10_000)
    assert found["token_strs"] == [str(token) for token in tokens]
    assert unpacked(packed(tokens)) == tokens


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (b"k", {"model": "m", "prompt": "a", "add_special_tokens": False}),
        (b"d", {"model": "m", "tokens": [1, 2]}),
    ],
)
def test_large_bodies_are_parsed_by_the_pool(endpoint: bytes, body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    prepared: PreparedRequest = decode_reply(answer(endpoint + raw))
    here = PARSERS[endpoint](raw)
    assert (prepared.form, prepared.endpoint) == (here.form, here.endpoint)
    assert [*map(bytes, prepared.fields.values())] == [*map(bytes, here.fields.values())]
