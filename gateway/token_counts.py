"""Counts the tokens of prompts for customers, as the engines count them: without an engine, and free."""

from collections.abc import Callable
from typing import Any, Generic, Protocol
from uuid import UUID

from core.errors import InvalidRequest, PenstockError, RequestTooLarge, Unavailable
from gateway.abilities import check_abilities, permitted_model
from gateway.ports import GrantT, Models, Rates
from gateway.sandbox import Sandbox
from gateway.schemas.common import PreparedRequest
from gateway.tokenization.text_encoder import TokenizationError
from scheduler.wire import PoolSnapshot
from tenants.principal import Principal
from workers.token_blocks import TOKEN_BYTES

LOAD_WAIT_S = 10.0
"""Seconds that a count waits for a tokenizer that is being loaded."""


class Tokenizers(Protocol):
    """The parts of gateway.tokenization.hasher.TokenBlockHasher that count."""

    async def loaded(self, model: str, wait_s: float) -> None:
        """Wait until the tokenizer of a model that is being loaded is there, at most `wait_s` seconds."""

    async def tokens(
        self, model: str, prepared: PreparedRequest, salt: str, reasoning: bool, simulated: bool
    ) -> bytes:
        """Return the packed token ids of a prompt. Raises TokenizationError."""


class TokenCounts(Generic[GrantT]):
    """Answers how many tokens a prompt has. One per process; keeps no state of a request."""

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
        """Return the tokens of the prompt, which counts as one request without tokens towards the key's limits.

        Raises RateLimited, what `permitted_model` and `check_abilities` raise, RequestTooLarge for a prompt that is too
        long to be counted, InvalidRequest for one that the model's chat template does not take, and Unavailable.
        """
        if principal.kind == "test":
            return await self._sandbox.count_tokens(request_id, principal, prepared)
        grant = await self._rates.acquire(str(request_id), principal, 0, 0)
        try:
            model = permitted_model(self._models, principal, prepared)
            check_abilities(prepared, model)
            simulated = any(each.simulated for each in self._snapshot().replicas if each.model == model.name)
            if not simulated:
                await self._tokenizers.loaded(model.name, LOAD_WAIT_S)
            tokens = await self._tokenizers.tokens(
                model.name,
                prepared,
                principal.cache_salt,
                reasoning="reasoning" in model.capabilities,
                simulated=simulated,
            )
            return len(tokens) // TOKEN_BYTES
        except TokenizationError as error:
            raise _to_error(str(error), prepared.model) from None
        finally:
            self._rates.settle(grant, 0, 0)


def _to_error(reason: str, model: str) -> PenstockError:
    """The error for a reason of gateway.tokenization."""
    if reason == "too_long":
        return RequestTooLarge("The prompt is too long to be counted; count its parts.", param="messages")
    if reason in ("template_failed", "no_template"):
        return InvalidRequest(
            f"The chat template of '{model}' does not take this conversation; check the order of its roles.",
            param="messages",
        )
    facts: dict[str, Any] = {"code": "tokenizer_unavailable", "retry_after_s": 2.0}
    if reason in ("busy", "loading"):
        return Unavailable("Tokens cannot be counted at the moment; try again in two seconds.", **facts)
    return Unavailable(
        f"The tokenizer of '{model}' is not available here.", **{**facts, "retry_after_s": 60.0}
    )
