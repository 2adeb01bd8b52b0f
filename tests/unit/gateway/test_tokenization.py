"""Prompts as tokens: the model's own template and tokenizer, cached without changing a single token."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from core.errors import Unavailable
from gateway.prefix import PromptBlocks, block_hashes
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from gateway.schemas.completions import parse_completion
from gateway.tokenization.hasher import (
    LARGE_PROMPT_BYTES,
    MAX_PROMPT_BYTES,
    RETRY_S,
    TOKENIZER_THREADS,
    BlockMetrics,
    TokenBlockHasher,
)
from gateway.tokenization.model_tokenizer import ModelTokenizer
from gateway.tokenization.text_encoder import MAX_TOKENS, TextEncoder, TokenCache, TokenizationError
from scheduler.wire import PoolSnapshot
from sim.engine.schemas import ChatBody
from sim.engine.text import encode, token_ids
from sim.engine.tokenizer import SimulatedTokenizer
from tests.support.waiting import until
from tests.unit.gateway.tokenizing import BOS, END, START, Json, day
from workers.tiny_model import TEMPLATE as TINY
from workers.token_blocks import packed, token_block_hashes
from workers.wire import Capacity, ReplicaState, ReplicaStatus

CORPUS = "The river runs to the sea and the sea is wide. def run(self): return self.river[0]  # 42\n" * 20
BLOCK = 8
SALT = "tenant"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as the hub has it: a trained byte-level BPE that adds a BOS to bare prompts, and ChatML."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[BOS, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"bos_token": {"content": BOS}, "chat_template": TINY}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def encoder(directory: Path, cache: TokenCache | None = None) -> TextEncoder:
    return TextEncoder(directory / "tokenizer.json", "m", cache or TokenCache())


def uncached(directory: Path, text: str, *, special: bool = False) -> bytes:
    """What the tokenizer itself says of the whole text."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return packed(tokenizer.encode(text, add_special_tokens=special).ids)


PIECES = st.one_of(
    st.sampled_from(
        [START, END, BOS, "<|im_", "|>", "user\n", " ", "\n\n", "  x", "é", "river", "the sea", "\u3000"]
    ),
    st.text(max_size=12),
)


@given(st.lists(st.lists(PIECES, max_size=8).map("".join), max_size=6))
def test_cached_equals_uncached(model_dir: Path, texts: list[str]) -> None:
    """Whatever was encoded before, and however a conversation grows."""
    cache = TokenCache(max_bytes=4000)
    encode, whole = encoder(model_dir, cache), ""
    for text in texts:
        whole += text
        assert encode.chat(whole, SALT) == uncached(model_dir, whole)
        assert encode.chat(text, SALT) == uncached(model_dir, text)
        assert encode.plain(text, SALT) == uncached(model_dir, text, special=True)
        assert cache.bytes <= cache.max_bytes


def test_a_growing_conversation_encodes_only_its_tail(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, seen = encoder(model_dir), []
    batch = encode._tokenizer.encode_batch_fast

    class Spy:
        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            seen.append(texts)
            return batch(texts, **options)

    monkeypatch.setattr(encode, "_tokenizer", Spy())
    first = f"{START}user\nthe river{END}"
    encode.chat(first, SALT)
    encode.chat(f"{first}{START}assistant\nthe sea{END}", SALT)
    encode.chat(first, "another tenant")
    assert seen == [["user\nthe river"], ["assistant\nthe sea"], ["user\nthe river"]]


@pytest.mark.parametrize(
    ("change", "cuts"),
    [
        ({}, 3),
        ({"lstrip": True}, 2),
        ({"normalized": True}, 2),
        ({"special": False}, 2),
        ({"content": END[:-2]}, 1),
    ],
)
def test_only_safe_special_tokens_are_cut_at(
    model_dir: Path, tmp_path: Path, change: Json, cuts: int
) -> None:
    facts = json.loads((model_dir / "tokenizer.json").read_text())
    facts["added_tokens"][1] |= change
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(facts))
    try:
        found = TextEncoder(path, "m", TokenCache())
    except ValueError:
        pytest.skip("this build of tokenizers refuses the file itself")
    assert len(found._split_token_ids) == cuts


def test_pieces_that_depend_on_their_place_are_never_cut(model_dir: Path, tmp_path: Path) -> None:
    facts = json.loads((model_dir / "tokenizer.json").read_text())
    facts["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "_",
        "prepend_scheme": "first",
        "split": True,
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(facts))
    assert TextEncoder(path, "m", TokenCache())._splitter is None


@pytest.mark.parametrize("content", ["not json", "{}"])
def test_a_file_that_is_no_tokenizer(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="is not a tokenizer"):
        TextEncoder(path, "m", TokenCache())


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('no') }}", "{{ messages.append(1) }}", "{{ messages[0].nothing.deeper }}"]
)
def test_a_template_that_refuses_leaves_the_request_to_its_text(
    tmp_path: Path, model_dir: Path, source: str
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((model_dir / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text(source)
    tokens = ModelTokenizer(tmp_path, "m", TokenCache(), day)
    with pytest.raises(TokenizationError, match="template_failed"):
        tokens.tokenize(chat("hello"), SALT, reasoning=False)


def chat(*texts: str, **fields: Any) -> PreparedRequest:
    messages = [{"role": "user", "content": text} for text in texts]
    return parse_chat(json.dumps({"model": "m", "messages": messages, **fields}).encode())


def completion(prompt: Any) -> PreparedRequest:
    return parse_completion(json.dumps({"model": "m", "prompt": prompt}).encode())


def test_the_body_sent_to_engines_is_the_one_that_is_tokenized(model_dir: Path) -> None:
    tokens = ModelTokenizer(model_dir, "m", TokenCache(), day)
    rendered = f"{START}user\nthe river{END}\n{START}assistant\n"
    assert tokens.tokenize(chat("the river"), SALT, reasoning=False) == uncached(model_dir, rendered)
    bare = uncached(model_dir, "the sea", special=True)
    assert tokens.tokenize(completion("the sea"), SALT, reasoning=False) == bare
    assert tokens.tokenize(completion(["the sea"]), SALT, reasoning=False) == bare
    assert tokens.tokenize(completion([5, 6]), SALT, reasoning=False) == packed([5, 6])
    with pytest.raises(TokenizationError, match="several_prompts"):
        tokens.tokenize(completion(["a", "b"]), SALT, reasoning=False)


def test_the_simulated_engine_sees_the_same_tokens() -> None:
    """What its events will say of a prompt is what is hashed of it here."""
    tokens = SimulatedTokenizer()
    prepared = chat("the river", "the sea", seed=1)
    body = msgspec.json.decode(prepared.engine_body("m", "salt"), type=ChatBody)
    assert tokens.tokenize(prepared, "", reasoning=False) == packed(token_ids(body.prompts()[0]))
    bare = completion("the river")
    assert tokens.tokenize(bare, "", reasoning=False) == packed(token_ids(encode("the river")))
    with pytest.raises(TokenizationError):
        tokens.tokenize(completion([1, 2]), "", reasoning=False)


# The service


def snapshot(kind: str = "tokens", state: ReplicaState = ReplicaState.READY) -> PoolSnapshot:
    status = ReplicaStatus(
        "h/m-0", "m", "http://h", "vllm", "b", state, Capacity(1, 1, 1), block_size=BLOCK, prefix_kind=kind
    )
    return PoolSnapshot(replicas=[status])


class Service:
    """A started service with a clock and a pool in the test's hands."""

    def __init__(self, find: Callable[[str], Path]) -> None:
        self.pool = snapshot()
        self.time = 100.0
        self.registry = CollectorRegistry()
        self.hasher = TokenBlockHasher(
            lambda: self.pool, find, metrics=BlockMetrics(self.registry), now=lambda: self.time, today=day
        )

    async def blocks(self, prepared: PreparedRequest) -> PromptBlocks:
        return await self.hasher.blocks("m", prepared, SALT, reasoning=False)

    def count(self, reason: str) -> float:
        labels = {"model": "m", "kind": "tokens" if not reason else "text", "reason": reason}
        return self.registry.get_sample_value("penstock_prompt_blocks_total", labels) or 0.0


LONG = chat("the river runs " * 200)


async def test_tokens_once_the_tokenizer_is_loaded(model_dir: Path) -> None:
    service = Service(lambda _: model_dir)
    await service.hasher.start()
    text = LONG.prompt_prefix(LONG.prompt_bytes)
    assert await service.blocks(LONG) == PromptBlocks(block_hashes(text, SALT.encode()))
    assert service.count("loading") == 1

    async def exact() -> bool:
        return (await service.blocks(LONG)).block_tokens == BLOCK

    await until(exact)
    tokens = ModelTokenizer(model_dir, "m", TokenCache(), day).tokenize(LONG, SALT, reasoning=False)
    assert await service.blocks(LONG) == PromptBlocks(
        token_block_hashes(tokens, BLOCK, SALT), BLOCK, len(tokens) // 4
    )
    await service.hasher.close()


@pytest.mark.parametrize(
    "pool",
    [snapshot("text"), snapshot(state=ReplicaState.LOADING), PoolSnapshot()],
    ids=["text", "loading", "none"],
)
async def test_text_where_no_replica_wants_tokens(model_dir: Path, pool: PoolSnapshot) -> None:
    service = Service(lambda _: model_dir)
    service.pool = pool
    await service.hasher.start()
    assert (await service.blocks(LONG)).block_tokens == 0
    assert service.count("mirrored") == 1
    await service.hasher.close()


async def test_a_tokenizer_that_cannot_be_had_is_looked_for_again() -> None:
    asked = []

    def find(model: str) -> Path:
        asked.append(model)
        raise Unavailable("no such file")

    service = Service(find)
    await service.hasher.start()

    async def given_up() -> bool:
        return (await service.blocks(LONG)).block_tokens == 0 and service.count("no_tokenizer") > 0

    await until(given_up)
    await service.blocks(LONG)
    assert len(asked) == 1
    service.time += RETRY_S
    await service.blocks(LONG)
    await until(lambda: len(asked) == 2)
    await service.hasher.close()


async def test_tokenizers_that_do_not_come_keep_no_other_model_waiting(model_dir: Path) -> None:
    release = threading.Event()

    def find(model: str) -> Path:
        assert release.wait(60)
        raise Unavailable("the hub never answered")

    service = Service(find)
    names = ["slow-1", "slow-2", "m"]
    service.pool = PoolSnapshot(
        replicas=[msgspec.structs.replace(snapshot().replicas[0], model=name) for name in names]
    )
    service.hasher._tokenizers["m"] = ModelTokenizer(model_dir, "m", TokenCache(), day)
    await service.hasher.start()
    for name in names[:2]:
        await service.hasher.blocks(name, LONG, SALT, reasoning=False)

    async def exact() -> bool:
        return (await service.blocks(LONG)).block_tokens == BLOCK

    await until(exact)
    assert not release.is_set()
    release.set()
    await service.hasher.close()


@pytest.mark.parametrize(
    "config",
    [{"chat_template": [{"x": 1}]}, {"chat_template": 3}, {"bos_token": {"id": 1}}, {"chat_template": [1]}],
    ids=str,
)
def test_an_invalid_configuration_is_named(model_dir: Path, tmp_path: Path, config: Json) -> None:
    (tmp_path / "tokenizer.json").write_bytes((model_dir / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="is invalid"):
        ModelTokenizer(tmp_path, "m", TokenCache(), day)


async def test_too_long_or_too_late_is_placed_by_text(model_dir: Path) -> None:
    service = Service(lambda _: model_dir)
    await service.hasher.start()
    release = threading.Event()

    class Slow:
        def tokenize(self, prepared: PreparedRequest, salt: str, *, reasoning: bool) -> bytes:
            assert release.wait(20)
            return b""

    service.hasher._tokenizers["m"] = Slow()
    huge = chat("x" * (MAX_PROMPT_BYTES + 1))
    assert (await service.blocks(huge)).block_tokens == 0
    assert service.count("too_long") == 1
    assert (await service.blocks(LONG)).block_tokens == 0
    assert service.count("late") == 1
    release.set()

    async def again() -> bool:
        return (await service.blocks(LONG)).block_tokens == BLOCK

    await until(again)
    await service.hasher.close()


async def test_prompts_that_are_late_already_do_not_delay_those_behind(model_dir: Path) -> None:
    service = Service(lambda _: model_dir)
    await service.hasher.start()
    release, started = threading.Event(), []

    class Slow:
        def tokenize(self, prepared: PreparedRequest, salt: str, *, reasoning: bool) -> bytes:
            started.append(prepared)
            assert release.wait(20)
            return b""

    service.hasher._tokenizers["m"] = Slow()
    prompts = [chat(f"prompt {number}") for number in range(TOKENIZER_THREADS + 3)]
    found = await asyncio.gather(*(service.blocks(prompt) for prompt in prompts))
    assert [blocks.block_tokens for blocks in found] == [0] * len(prompts)
    assert len(started) == TOKENIZER_THREADS, "the others wait for a thread"
    service.time += 10.0
    release.set()
    await until(lambda: not any(service.hasher._waiting))
    assert len(started) == TOKENIZER_THREADS
    assert (await service.blocks(LONG)).block_tokens == BLOCK
    await service.hasher.close()


@pytest.mark.parametrize(
    ("error", "reason"),
    [(TokenizationError("template_failed"), "template_failed"), (KeyError("x"), "failed")],
)
async def test_no_failure_reaches_the_request(model_dir: Path, error: Exception, reason: str) -> None:
    service = Service(lambda _: model_dir)
    await service.hasher.start()

    class Broken:
        def tokenize(self, prepared: PreparedRequest, salt: str, *, reasoning: bool) -> bytes:
            raise error

    service.hasher._tokenizers["m"] = Broken()
    assert (await service.blocks(LONG)).block_tokens == 0
    assert service.count(reason) == 1
    await service.hasher.close()


async def test_large_prompts_do_not_delay_short_ones(model_dir: Path) -> None:
    service = Service(lambda _: model_dir)
    await service.hasher.start()
    release = threading.Event()

    class SlowWhenLarge:
        def tokenize(self, prepared: PreparedRequest, salt: str, *, reasoning: bool) -> bytes:
            assert prepared.prompt_bytes < LARGE_PROMPT_BYTES or release.wait(20)
            return bytes(4 * BLOCK)

    service.hasher._tokenizers["m"] = SlowWhenLarge()
    large = [asyncio.create_task(service.blocks(chat("x" * LARGE_PROMPT_BYTES))) for _ in range(4)]
    await until(lambda: service.hasher._waiting[True] == 4, what="large prompts wait")
    assert (await service.blocks(LONG)).block_tokens == BLOCK
    release.set()
    await asyncio.gather(*large)
    await service.hasher.close()


def test_texts_of_more_tokens_than_any_context_are_not_converted(model_dir: Path) -> None:
    encoder = TextEncoder(model_dir / "tokenizer.json", "m", TokenCache())
    for to_tokens in (encoder.chat, encoder.plain):
        with pytest.raises(TokenizationError, match="too_long"):
            to_tokens("q" * (MAX_TOKENS + 1), SALT)
