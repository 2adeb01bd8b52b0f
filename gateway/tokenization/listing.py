"""The answers of tokenize and detokenize, made in the tokenizer's thread.

Lists are encoded in slices: the encoder holds the interpreter's lock, and between two slices other threads run.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.limits import MAX_LISTED_TOKENS
from gateway.schemas.common import PreparedRequest
from gateway.tokenization.model_tokenizer import PromptTokenizer
from gateway.tokenization.text_encoder import TokenizationError

_SLICE = 4096
"""Entries of a list that are encoded at a time, which takes 0.1 ms."""


def tokenize_answer(
    tokenizer: PromptTokenizer, prepared: PreparedRequest, salt: str, *, reasoning: bool, context_len: int
) -> bytes:
    """Return vLLM's answer to tokenize as JSON. Raises TokenizationError, too_long above MAX_LISTED_TOKENS."""
    tokens = unpacked(tokenizer.tokenize(prepared, salt, reasoning=reasoning))
    if len(tokens) > MAX_LISTED_TOKENS:
        raise TokenizationError("too_long")
    names = tokenizer.names(tokens) if prepared.dialect_fields["strings"] else None
    return tokens_document(tokens, names, context_len)


def detokenize_answer(tokenizer: PromptTokenizer, prepared: PreparedRequest) -> bytes:
    """Return vLLM's answer to detokenize as JSON. Raises UnknownToken and TokenizationError."""
    tokens = msgspec.json.decode(prepared.fields["tokens"], type=list[int])
    return text_document(tokenizer.text(tokens) if tokens else "")


def tokens_document(tokens: Sequence[int], names: Sequence[str] | None, context_len: int) -> bytes:
    """The document of a prompt's tokens; `names`: their entries in the vocabulary, if they were asked for."""
    head = b'{"count":%d,"max_model_len":%d,"tokens":' % (len(tokens), context_len)
    named = b"null" if names is None else _encoded(names)
    return b"".join((head, _encoded(tokens), b',"token_strs":', named, b"}"))


def text_document(text: str) -> bytes:
    """The document of the text of tokens."""
    return msgspec.json.encode({"prompt": text})


def unpacked(tokens: bytes) -> list[int]:
    """The ids of packed tokens (workers/token_blocks.py)."""
    numbers = array("I", tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _encoded(values: Sequence[Any]) -> bytes:
    slices = (values[start : start + _SLICE] for start in range(0, len(values), _SLICE))
    return b"[" + b",".join(msgspec.json.encode(each)[1:-1] for each in slices) + b"]"
