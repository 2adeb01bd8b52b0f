"""Answers to requests for embeddings: read from the engine in one piece, with vectors that are passed on as written."""

import struct
from base64 import b64encode
from hashlib import shake_128
from typing import Any

import msgspec

from billing.metering.records import UsageRecord
from core.errors import EngineFailed, RequestTooLarge
from core.money import pico_to_usd
from core.tokens import TokenUsage
from gateway.abilities import too_many_inputs
from gateway.answers import billing_object, whole_headers
from gateway.ports import Headers
from gateway.schemas.common import Extras, PreparedRequest
from gateway.usage import EngineUsage, UsageTracker
from gateway.whole import MAX_COUNTS, WholeAnswer

SAMPLE_DIMENSIONS = 256
"""Numbers of a vector that answers a test key's request without `dimensions`."""


class _Vector(msgspec.Struct, gc=False):
    """One entry of an engine's answer."""

    index: int
    embedding: msgspec.Raw
    """The vector as JSON: an array of numbers, or a text in base64. It is never decoded."""


class _Document(msgspec.Struct, gc=False):
    """The members of an engine's answer that the customer gets."""

    data: list[_Vector]
    usage: EngineUsage


_decoder = msgspec.json.Decoder(_Document)


class Embeddings(WholeAnswer):
    """The embeddings of one attempt. Its choices are the inputs; it has no output tokens.

    The prompt of an attempt whose answer has not arrived is not charged: counters of an engine that generates nothing
    do not show what `WholeAnswers.advance` looks for.
    """

    __slots__ = ()

    def __init__(self, inputs: int, dispatched_at: float) -> None:
        """`dispatched_at`: monotonic seconds."""
        super().__init__(inputs, 0, dispatched_at, -1, Extras())
        self.counts = MAX_COUNTS

    def too_large(self, arrived: bytes | bytearray, *, packed: bool) -> RequestTooLarge:
        """The error for an answer that is larger than the gateway keeps; `arrived`: the part of it that has come.

        The entries in that part say how many inputs fit: it happens with models whose dimensions are not known.
        """
        fits = max(1, arrived.count(b'"embedding":') - 1)
        return too_many_inputs(self.choices, fits, "this model's vectors", packed=packed)

    def take(self, endpoint: str, body: bytes) -> None:
        """Take the engine's answer. Raises EngineFailed when it is not one vector per input with its usage."""
        try:
            found = _decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise EngineFailed(f"The engine sent an answer of an unknown form: {error}") from None
        if sorted(vector.index for vector in found.data) != list(range(self.choices)):
            raise EngineFailed("The engine sent an answer with missing embeddings.")
        if found.usage.prompt_tokens < 1:
            raise EngineFailed("The engine sent an answer without its usage.")
        self.content_started = self.done = True
        self.finish_reasons = dict.fromkeys(range(self.choices), "stop")
        self.tracker = UsageTracker(self.choices)
        self.tracker.set_totals(msgspec.structs.replace(found.usage, completion_tokens=0))
        self.document = embeddings_document([vector.embedding for vector in sorted(found.data, key=_index)])


def _index(vector: _Vector) -> int:
    return vector.index


def embeddings_document(vectors: list[Any]) -> dict[str, Any]:
    """OpenAI's answer, without model, usage and billing. `vectors`: one per input, in their order."""
    data = [
        {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)
    ]
    return {"object": "list", "data": data}


def embeddings_usage(usage: TokenUsage, cost_usd: str) -> dict[str, Any]:
    """OpenAI's usage object of embeddings with the member `cost`: the number `cost_usd`, exact decimal dollars."""
    cost = msgspec.Raw(cost_usd.encode())
    return {"prompt_tokens": usage.input, "total_tokens": usage.total, "cost": cost}


def embeddings_answer(document: dict[str, Any], record: UsageRecord) -> tuple[bytes, Headers]:
    """Return body and headers of the answer: `document`, the model, our usage, cost and outcome."""
    cost_usd = pico_to_usd(record.cost)
    document["model"] = record.open.model
    document["usage"] = embeddings_usage(record.usage, cost_usd)
    document["penstock"] = billing_object(record, cost_usd)
    return msgspec.json.encode(document), whole_headers(record)


def sample_vectors(prepared: PreparedRequest) -> list[Any]:
    """A vector of length 1 for each input, made from a hash of it: what test keys get."""
    size = min(prepared.fields.get("dimensions", SAMPLE_DIMENSIONS), SAMPLE_DIMENSIONS)
    inputs: Any = msgspec.json.decode(prepared.fields["input"])
    if isinstance(inputs, str) or isinstance(inputs[0], int):
        inputs = [inputs]
    vectors = [_hashed(msgspec.json.encode(each), size) for each in inputs]
    if prepared.fields.get("encoding_format") != "base64":
        return vectors
    return [b64encode(struct.pack(f"<{size}f", *vector)).decode() for vector in vectors]


def _hashed(text: bytes, size: int) -> list[float]:
    numbers = [byte - 127.5 for byte in shake_128(text).digest(size)]
    length = sum(number * number for number in numbers) ** 0.5
    return [number / length for number in numbers]
