"""Tells customers the tokens of prompts and the text of tokens, as the engines do: without an engine, and free."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from core.errors import InvalidRequest, PenstockError, RequestTooLarge, Unavailable
from gateway.abilities import check_abilities, permitted_model
from gateway.limits import MAX_DETOKENIZED_CHARS
from gateway.ports import GrantT, Model, Models, Rates
from gateway.sandbox import Sandbox
from gateway.schemas.common import PreparedRequest
from gateway.tokenization.listing import detokenize_answer, text_document, tokenize_answer, tokens_document
from gateway.tokenization.model_tokenizer import PromptTokenizer
from gateway.tokenization.text_encoder import TokenizationError, UnknownToken
from scheduler.wire import PoolSnapshot
from tenants.principal import Principal
from workers.token_blocks import TOKEN_BYTES

LOAD_WAIT_S = 10.0
"""Seconds that a count waits for a tokenizer that is being loaded."""
SAMPLE_CONTEXT = 8192
"""Context of a test key's models, as tokenize tells it, and tokens that it lists for them."""
T = TypeVar("T")


class Tokenizers(Protocol):
    """The parts of gateway.tokenization.hasher.TokenBlockHasher that count."""

    async def loaded(self, model: str, wait_s: float) -> None:
        """Wait until the tokenizer of a model that is being loaded is there, at most `wait_s` seconds."""

    async def run(self, model: str, size: int, work: Callable[[PromptTokenizer], T], *, simulated: bool) -> T:
        """Run `work` with the model's tokenizer in a thread. Raises TokenizationError, and what it raises."""


class _Served(NamedTuple):
    """The model of a request, and whether simulated replicas serve it."""

    model: Model
    simulated: bool


class TokenCounts(Generic[GrantT]):
    """Answers what the tokens of a prompt are. One per process; keeps no state of a request.

    Each answer counts as one request without tokens towards the key's limits. All methods raise RateLimited, what
    `permitted_model` and `check_abilities` raise, RequestTooLarge for what is too long, InvalidRequest for a
    conversation that the model's chat template does not take, and Unavailable.
    """

    def __init__(
        self,
        models: Models,
        rates: Rates[GrantT],
        tokenizers: Tokenizers,
        sandbox: Sandbox[GrantT],
        snapshot: Callable[[], PoolSnapshot],
    ) -> None:
        """`snapshot` returns the live state of the replicas, of which simulated ones count in their own way."""
        self._models = models
        self._rates = rates
        self._tokenizers = tokenizers
        self._sandbox = sandbox
        self._snapshot = snapshot

    async def count(self, request_id: UUID, principal: Principal, prepared: PreparedRequest) -> int:
        """Return how many tokens the prompt has."""
        if principal.kind == "test":
            return await self._sandbox.count_tokens(request_id, principal, prepared)
        async with self._served(request_id, principal, prepared) as served:

            def work(tokenizer: PromptTokenizer) -> int:
                reasoning = "reasoning" in served.model.capabilities
                packed = tokenizer.tokenize(prepared, principal.cache_salt, reasoning=reasoning)
                return len(packed) // TOKEN_BYTES

            return await self._run(served, prepared, work)

    async def tokenize(self, request_id: UUID, principal: Principal, prepared: PreparedRequest) -> bytes:
        """Return the document of the prompt's tokens (vLLM's TokenizeResponse)."""
        if principal.kind == "test":
            tokens = await self._samples(request_id, principal, prepared)
            names = [*map(_sample, tokens)] if prepared.dialect_fields["strings"] else None
            return tokens_document(tokens, names, SAMPLE_CONTEXT)
        async with self._served(request_id, principal, prepared) as served:

            def work(tokenizer: PromptTokenizer) -> bytes:
                return tokenize_answer(
                    tokenizer,
                    prepared,
                    principal.cache_salt,
                    reasoning="reasoning" in served.model.capabilities,
                    context_len=served.model.context_len,
                )

            return await self._run(served, prepared, work)

    async def detokenize(self, request_id: UUID, principal: Principal, prepared: PreparedRequest) -> bytes:
        """Return the document of the tokens' text (vLLM's DetokenizeResponse)."""
        if principal.kind == "test":
            return text_document("".join(map(_sample, await self._samples(request_id, principal, prepared))))
        async with self._served(request_id, principal, prepared) as served:
            return await self._run(served, prepared, lambda tokenizer: detokenize_answer(tokenizer, prepared))

    async def _samples(self, request_id: UUID, principal: Principal, prepared: PreparedRequest) -> list[int]:
        """The tokens of a test key's request, at most SAMPLE_CONTEXT. Raises RequestTooLarge for more."""
        count = await self._sandbox.count_tokens(request_id, principal, prepared)
        if count > SAMPLE_CONTEXT:
            raise RequestTooLarge(
                f"{count:,} tokens; test keys get at most {SAMPLE_CONTEXT:,}.",
                param=next(iter(prepared.fields)),
            )
        return list(range(count))

    @asynccontextmanager
    async def _served(
        self, request_id: UUID, principal: Principal, prepared: PreparedRequest
    ) -> AsyncIterator[_Served]:
        """The model, while one request is counted; errors of its tokenizer become the customer's."""
        grant = await self._rates.acquire(str(request_id), principal, 0, 0)
        try:
            model = permitted_model(self._models, principal, prepared)
            check_abilities(prepared, model)
            simulated = any(each.simulated for each in self._snapshot().replicas if each.model == model.name)
            if not simulated:
                await self._tokenizers.loaded(model.name, LOAD_WAIT_S)
            yield _Served(model, simulated)
        except TokenizationError as error:
            raise _to_error(error, prepared) from None
        finally:
            self._rates.settle(grant, 0, 0)

    async def _run(
        self, served: _Served, prepared: PreparedRequest, work: Callable[[PromptTokenizer], T]
    ) -> T:
        size = prepared.prompt_bytes
        return await self._tokenizers.run(served.model.name, size, work, simulated=served.simulated)


def _sample(token: int) -> str:
    """The text of one of a test key's tokens."""
    return f"token{token} "


def _to_error(error: TokenizationError, prepared: PreparedRequest) -> PenstockError:
    """The error for a reason of gateway.tokenization."""
    reason, param = str(error), next(iter(prepared.fields))
    if isinstance(error, UnknownToken):
        return InvalidRequest(
            f"The token id {error.token} in 'tokens' is not in the vocabulary of '{prepared.model}', which has "
            f"{error.size:,} ids.",
            param="tokens",
        )
    if reason == "too_long" and param == "tokens":
        return RequestTooLarge(
            f"The text of these tokens may be longer than {MAX_DETOKENIZED_CHARS:,} characters; send fewer.",
            param=param,
        )
    if reason == "too_long":
        return RequestTooLarge("The prompt is too long to be counted; count its parts.", param=param)
    if reason in ("template_failed", "no_template"):
        return InvalidRequest(
            f"The chat template of '{prepared.model}' does not take this conversation; check the order of its roles.",
            param="messages",
        )
    facts: dict[str, Any] = {"code": "tokenizer_unavailable", "retry_after_s": 2.0}
    if reason in ("busy", "loading"):
        return Unavailable("Tokens cannot be counted at the moment; try again in two seconds.", **facts)
    return Unavailable(
        f"The tokenizer of '{prepared.model}' is not available here.", **{**facts, "retry_after_s": 60.0}
    )
