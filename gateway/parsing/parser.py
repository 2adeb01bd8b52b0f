"""Parses bodies: small ones in the event loop, large ones in the pool of processes."""

from collections.abc import Callable

from gateway.limits import MAX_INPUTS, MAX_PROMPTS, body_limit
from gateway.parsing.budget import INLINE_BYTES
from gateway.parsing.pool import ParserPool, no_check
from gateway.parsing.worker import PARSERS
from gateway.ports import Models
from gateway.schemas.common import PreparedRequest
from tenants.principal import Principal

CHAT, TEXT, EMBEDDINGS, MESSAGES, COUNT, RESPONSES, CONTINUED = b"c", b"t", b"e", b"m", b"n", b"r", b"s"
TOKENIZE, DETOKENIZE = b"k", b"d"
"""The endpoints, by which `PARSERS` knows them."""
_PROMPTS = {TEXT: MAX_PROMPTS, EMBEDDINGS: MAX_INPUTS}
"""Prompts in one body, where there may be several."""


class BodyParser:
    """Turns bodies into prepared requests. One per process."""

    def __init__(self, models: Models, pool: ParserPool | None = None) -> None:
        self._models = models
        self.pool = pool or ParserPool()

    def limit(self, principal: Principal, endpoint: bytes) -> int:
        """Return the bytes of the longest body that any model takes which the key may use."""
        context_len = self._models.largest_context(principal.allowed_models)
        return body_limit(context_len, _PROMPTS.get(endpoint, 1))

    async def parse(
        self, principal: Principal, endpoint: bytes, body: bytes, admit: Callable[[], None] = no_check
    ) -> PreparedRequest:
        """Return the prepared request. Raises InvalidRequest, a subclass of it, or Unavailable.

        `admit` is called when the body's turn has come and may raise a PenstockError: of many bodies that arrived
        together, the first invalid ones may have used up the key's rate.
        """
        if len(body) <= INLINE_BYTES:
            admit()
            return PARSERS[endpoint](body)
        return await self.pool.parse(principal.key_id, endpoint, body, admit)

    async def start(self) -> None:
        """Start nothing yet: the processes start when the first large body arrives."""

    async def close(self) -> None:
        """Stop the processes."""
        await self.pool.close()
