"""Batches of the prompts of a text completion, which one replica answers one after the other.

Placements and concurrency limits count a request once. Therefore no more than CHOICES_AT_ONCE of its choices run on an
engine at a time, however many prompts it has (docs/adr/0045-many-prompts-follow-each-other.md).
"""

from math import ceil

import msgspec

from gateway.limits import CHOICES_AT_ONCE
from gateway.schemas.common import PreparedRequest


class PromptBatch(msgspec.Struct, frozen=True):
    """Consecutive choices of a request that its engine generates together."""

    number: int
    """From 0 on."""
    first: int
    """Index of the first choice."""
    choices: int
    max_input_tokens: int
    """Upper bound of the tokens of its prompts."""
    last: bool
    """Whether no other batch follows."""


def batches_of(prepared: PreparedRequest) -> list[PromptBatch]:
    """Return the batches of a request in their order; there is one for all but text completions of many prompts."""
    if not prepared.parts:
        return [PromptBatch(0, 0, prepared.choices, prepared.max_input_tokens, True)]
    each, last = _choices_at_once(prepared), len(prepared.parts) - 1
    return [
        PromptBatch(
            number,
            number * each,
            min(each, prepared.choices - number * each),
            part.max_input_tokens,
            number == last,
        )
        for number, part in enumerate(prepared.parts)
    ]


def prompts_of(prepared: PreparedRequest, batch: PromptBatch) -> msgspec.Raw | None:
    """Return the prompts of a batch as a JSON array; None when they are all that the request has."""
    return msgspec.Raw(prepared.parts[batch.number].prompts) if prepared.parts else None


def free_prompts(prepared: PreparedRequest, batch: PromptBatch) -> None:
    """Free the prompts of a batch that its engine has, because no other attempt will be made."""
    if batch.last:
        prepared.drop_body()
    if prepared.parts:
        prepared.parts[batch.number].prompts = b""


def input_of_one(prepared: PreparedRequest, tokens: int) -> int:
    """Return the part of `tokens`, of all prompts, that the batch with the most prompt tokens has by its bound."""
    if not prepared.parts:
        return tokens
    return ceil(tokens * max(part.max_input_tokens for part in prepared.parts) / prepared.max_input_tokens)


def output_of_one(prepared: PreparedRequest, tokens: int) -> int:
    """Return the part of `tokens`, of all choices, that one batch has."""
    return ceil(tokens * _choices_at_once(prepared) / prepared.choices)


def _choices_at_once(prepared: PreparedRequest) -> int:
    """The choices of all batches but the last one: those of whole prompts, at most CHOICES_AT_ONCE."""
    if not prepared.parts:
        return prepared.choices
    return CHOICES_AT_ONCE // prepared.choices_per_prompt * prepared.choices_per_prompt
