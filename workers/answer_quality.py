"""How the greedy answers of a new version's engine compare with those of the engine before it. Pure."""

import statistics
from collections.abc import Sequence

import msgspec

from workers.engine_sleep import Proof, difference
from workers.wire import ANY_DISTANCE, AnswerQuality


class AnswerRule(msgspec.Struct, frozen=True):
    """What the answers of a new engine must be like, so that it may serve."""

    same: bool = True
    """The same tokens, up to ties, with the same log-probabilities, up to rounding."""
    min_agreement: float = 0.0
    """Least share of tokens that are the same, or least cosine of embeddings."""
    max_logprob_distance: float = ANY_DISTANCE
    """Largest mean difference of their log-probabilities, in nats."""


ANY_ANSWER = AnswerRule(same=False)


def compare(before: Sequence[Proof], now: Sequence[Proof]) -> AnswerQuality | None:
    """The answers to the same prompts side by side; None where one is missing.

    Embeddings agree as far as the least cosine of two of them says, and those of different dimensions not at all.
    Greedy answers that have parted say nothing of each other any more, so what comes after the first different token
    counts as different.
    """
    cosines = [old.cosine(new) for old, new in zip(before, now, strict=False) if old.vector or new.vector]
    if cosines:
        return AnswerQuality(min(1.0, max(0.0, min(cosines))))
    tokens = agreed = 0
    moved: list[float] = []
    for old, new in zip(before, now, strict=False):
        pairs = list(zip(old.tokens, new.tokens, strict=False))
        same = next((place for place, (mine, theirs) in enumerate(pairs) if mine != theirs), len(pairs))
        tokens, agreed = tokens + len(old.tokens), agreed + same
        moved += [
            abs(mine - theirs) for mine, theirs in list(zip(old.logprobs, new.logprobs, strict=False))[:same]
        ]
    if not tokens:
        return None
    return AnswerQuality(agreed / tokens, statistics.fmean(moved) if moved else None)


def problem(rule: AnswerRule, before: Sequence[Proof], now: Sequence[Proof]) -> str:
    """Why an engine with the answers `now` must not serve, as a clause; empty = it may."""
    if rule.same:  # the bounds would refuse a tie, after which all tokens are different
        why = difference(before, now)
        return f"it has not the stored greedy answer: {why}" if why else ""
    found = compare(before, now)
    if found is None:
        return ""
    if found.agreement < rule.min_agreement:
        embeds = any(each.vector for each in (*before, *now))
        agree = (
            f"embeddings have the cosine {found.agreement:.2f} to those of before"
            if embeds
            else f"greedy answers agree with those of before in {found.agreement:.0%} of the tokens"
        )
        least = f"{rule.min_agreement:.2f} is" if embeds else f"{rule.min_agreement:.0%} are"
        return f"its {agree}, and {least} required"
    distance = found.logprob_distance
    # vLLM gives -9999 for a token without probability, so two answers may be further apart than ANY_DISTANCE.
    if distance is not None and ANY_DISTANCE > rule.max_logprob_distance < distance:
        return (
            f"the log-probabilities of its answers differ by {distance:.2f} from those of before, and at most "
            f"{rule.max_logprob_distance:.2f} are allowed"
        )
    return ""
