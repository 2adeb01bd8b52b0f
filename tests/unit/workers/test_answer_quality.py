"""Greedy answers of two versions side by side."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.answer_quality import ANY_ANSWER, AnswerRule, compare, problem
from workers.engine_sleep import Proof


def answer(text: str, *logprobs: float) -> Proof:
    return Proof(tuple(text), logprobs)


def test_agreement_ends_with_the_first_different_token_of_each_answer() -> None:
    before = [answer("abcd", -1.0, -2.0, -3.0, -4.0), answer("efgh", -1.0, -1.0, -1.0, -1.0)]
    now = [answer("abXd", -1.1, -2.3, -9.0, -9.0), answer("efgh", -1.0, -1.0, -1.0, -1.0)]
    found = compare(before, now)
    assert found is not None
    assert found.agreement == 6 / 8
    assert found.logprob_distance == pytest.approx((0.1 + 0.3) / 6)
    shorter = compare([answer("abcd")], [answer("ab")])
    assert shorter is not None
    assert (shorter.agreement, shorter.logprob_distance) == (0.5, None)
    assert compare([], now) is None


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (AnswerRule(), "it has not the stored greedy answer: the log-probability"),
        (AnswerRule(same=False, min_agreement=0.5), "in 25% of the tokens, and 50% are required"),
        (
            AnswerRule(same=False, max_logprob_distance=0.5),
            "differ by 0.60 from those of before, and at most 0.50",
        ),
        (AnswerRule(same=False, min_agreement=0.25, max_logprob_distance=0.7), ""),
        (ANY_ANSWER, ""),
    ],
)
def test_what_a_rule_refuses(rule: AnswerRule, words: str) -> None:
    before, now = [answer("abcd", -1.0, -1.0, -1.0, -1.0)], [answer("aXYZ", -1.6, -1.0, -1.0, -1.0)]
    assert words in problem(rule, before, now)
    assert bool(words) == bool(problem(rule, before, now))


@pytest.mark.parametrize(
    ("vector", "cosine"), [((3.0, 4.0), 1.0), ((4.0, 3.0), 0.96), ((-4.0, 3.0), 0.0), ((3.0, 4.0, 0.0), 0.0)]
)
def test_embeddings_agree_by_the_least_cosine(vector: tuple[float, ...], cosine: float) -> None:
    before, now = [Proof(vector=(3.0, 4.0))] * 2, [Proof(vector=(3.0, 4.0)), Proof(vector=vector)]
    found = compare(before, now)
    assert found is not None
    assert (found.agreement, found.logprob_distance) == (pytest.approx(cosine), None)
    why = problem(AnswerRule(same=False, min_agreement=0.25), before, now)
    assert why == (
        "" if cosine else "its embeddings have the cosine 0.00 to those of before, and 0.25 is required"
    )
    assert problem(ANY_ANSWER, before, now) == ""


def test_a_tie_is_the_same_answer_whatever_comes_after_it() -> None:
    before = [Proof(tuple("abcd"), margins=(0.1, 5.0, 5.0, 5.0))]
    assert (
        problem(AnswerRule(same=True, min_agreement=0.25, max_logprob_distance=0.1), before, [answer("Xbcd")])
        == ""
    )


def test_any_answer_may_have_tokens_without_probability() -> None:
    before, now = [answer("ab", -1.0, -1.0)], [answer("ab", -1.0, -9999.0)]
    assert problem(ANY_ANSWER, before, now) == ""
    assert "differ by 4999.00" in problem(AnswerRule(same=False, max_logprob_distance=1.0), before, now)


@given(st.lists(st.text("ab", max_size=6), max_size=4), st.lists(st.text("ab", max_size=6), max_size=4))
def test_agreement_is_a_share_and_whole_for_the_same_answers(one: list[str], other: list[str]) -> None:
    before, now = [answer(text) for text in one], [answer(text) for text in other]
    found = compare(before, now)
    assert found is None or 0.0 <= found.agreement <= 1.0
    same = compare(before, before)
    assert same is None or same.agreement == 1.0
