"""The simulated engine's model: blocks are conserved, tokens are counted once, preemption recomputes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.model import EngineModel, Sequence, new_sequence
from sim.engine.step_model.engine import StepConfig
from sim.engine.text import chat_prompt, count, encode
from workers.wire import Capacity


def capacity(**changes: float) -> Capacity:
    values = {
        "prefill_tokens_per_s": 1000.0,
        "step_base_s": 0.01,
        "step_per_seq_s": 0.001,
        "max_num_seqs": 8,
        "kv_cache_tokens": 4096,
        "max_model_len": 2048,
    }
    return Capacity(**{**values, **changes})  # type: ignore[arg-type]


def engine(block_size: int = 16, **changes: float) -> EngineModel:
    return EngineModel(
        StepConfig(capacity(max_batched_tokens=64, **changes), block_size=block_size, noise_cv=0)
    )


def prompt(tokens: int, word: str = "a") -> bytes:
    return encode((word * 3 + " ") * tokens)


def sequence(tokens: int, answer: int, word: str = "a", **options: object) -> Sequence:
    return new_sequence(prompt(tokens, word), max_tokens=answer, stops_by_itself=False, **options)  # type: ignore[arg-type]


def drain(model: EngineModel, limit: int = 10_000) -> float:
    """Step until idle; returns the simulated seconds."""
    seconds = 0.0
    for _ in range(limit):
        if not model.busy:
            return seconds
        seconds += model.step().seconds
        model.ranks[0].pool.check()
    raise AssertionError("the model makes no progress")


def test_one_request_takes_the_time_of_its_formula() -> None:
    model = engine()
    model.add(sequence(100, 5))
    # two prefill chunks (64, 36), the second yields token 1; then four decodes of one sequence
    assert drain(model) == pytest.approx(2 * 0.01 + 100 / 1000 + 4 * (0.01 + 0.001))


def test_counters_agree_with_the_sequences() -> None:
    model = engine()
    sequences = [sequence(10 + i, 7 + i, word=chr(97 + i)) for i in range(12)]
    for item in sequences:
        model.add(item)
    drain(model)
    assert all(item.finish_reason == "length" and item.generated == 7 + i for i, item in enumerate(sequences))
    assert model.counters().prompt_tokens == sum(10 + i for i in range(12))
    assert model.counters().generation_tokens == sum(7 + i for i in range(12))
    assert model.ranks[0].pool.used == 0


def test_second_request_finds_the_first_ones_prefix() -> None:
    model = engine()
    model.add(sequence(64, 2))
    drain(model)
    again = sequence(64, 2)
    model.add(again)
    drain(model)
    assert again.cached_tokens == 48  # the last block is computed anew, so that a token comes out
    assert model.counters().cached_prompt_tokens == 48


def test_another_salt_shares_nothing() -> None:
    model = engine()
    model.add(sequence(64, 2, salt="one"))
    drain(model)
    other = sequence(64, 2, salt="two")
    model.add(other)
    drain(model)
    assert other.cached_tokens == 0


def test_next_turn_finds_the_generated_answer() -> None:
    model = engine(block_size=4)
    first = new_sequence(chat_prompt([("user", "tell me a story")]), max_tokens=40, stops_by_itself=False)
    model.add(first)
    drain(model)
    answer = bytes(first.content[first.prompt_tokens * 4 :]).decode()
    turn = chat_prompt([("user", "tell me a story"), ("assistant", answer), ("user", "go on")])
    second = new_sequence(turn, max_tokens=4, stops_by_itself=False)
    model.add(second)
    drain(model)
    assert second.cached_tokens is not None
    assert second.cached_tokens >= first.total_tokens - 8


def test_preemption_recomputes_and_changes_no_answer() -> None:
    roomy, tight = engine(), engine(kv_cache_tokens=16 * 12)
    texts = []
    for model in (roomy, tight):
        items = [sequence(40, 60, word=chr(97 + i)) for i in range(4)]
        for item in items:
            model.add(item)
        drain(model)
        texts.append([bytes(item.content) for item in items])
        assert model.counters().generation_tokens == 240
        assert model.counters().prompt_tokens == 160
    assert tight.counters().preemptions > 0
    assert roomy.counters().preemptions == 0
    assert texts[0] == texts[1]


def test_abort_frees_everything_at_once() -> None:
    model = engine()
    items = [sequence(100, 500, word=chr(97 + i)) for i in range(12)]
    for item in items:
        model.add(item)
    for _ in range(5):
        model.step()
    for item in items:
        model.abort(item)
    assert not model.busy
    assert model.ranks[0].pool.used == 0
    assert {item.finish_reason for item in items} == {"abort"}


def test_speculation_yields_more_tokens_a_step() -> None:
    plain, fast = engine(), engine(accept_per_step=1.9)
    for model in (plain, fast):
        model.add(sequence(16, 400))
    assert drain(plain) / drain(fast) == pytest.approx(1.9, rel=0.1)
    assert fast.counters().generation_tokens == 400


def test_what_can_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="context"):
        engine().add(sequence(2000, 100))
    with pytest.raises(ValueError, match="KV cache"):
        engine(kv_cache_tokens=160).add(sequence(100, 100))


def test_same_seed_same_words_and_other_choice_other_words() -> None:
    def words(**options: int) -> bytes:
        model = engine()
        item = sequence(10, 20, **options)
        model.add(item)
        drain(model)
        return bytes(item.content)

    assert words() == words()
    assert words() != words(choice=1)
    assert words() != words(seed=7)


def test_text_of_whole_tokens() -> None:
    assert count(encode("abcde")) == 2
    assert count(encode("")) == 0


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(1, 120), st.integers(1, 80), st.integers(0, 3), st.sampled_from(["", "salt"])),
        min_size=1,
        max_size=25,
    ),
    st.integers(13, 40),
    st.data(),
)
def test_blocks_are_conserved_whatever_happens(
    requests: list[tuple[int, int, int, str]], blocks: int, data: st.DataObject
) -> None:
    model = engine(kv_cache_tokens=16 * blocks, accept_per_step=1.5)
    live: list[Sequence] = []
    expected = 0
    for prompt_tokens, answer, word, salt in requests:
        item = sequence(prompt_tokens, answer, word=chr(97 + word), salt=salt)
        model.add(item)
        live.append(item)
        for _ in range(data.draw(st.integers(0, 4))):
            if not model.busy:
                break
            step = model.step()
            expected += sum(count(new) for _, new in step.produced)
            model.ranks[0].pool.check()
        if data.draw(st.booleans()):
            model.abort(live[data.draw(st.integers(0, len(live) - 1))])
            model.ranks[0].pool.check()
    while model.busy:
        step = model.step()
        assert step.produced or step.prefilled
        expected += sum(count(new) for _, new in step.produced)
        model.ranks[0].pool.check()
    assert model.ranks[0].pool.used == 0
    assert model.counters().generation_tokens == expected == sum(item.generated for item in live)
    assert all(item.finish_reason in {"length", "abort"} for item in live)
    assert all(item.generated == item.max_tokens for item in live if item.finish_reason == "length")
