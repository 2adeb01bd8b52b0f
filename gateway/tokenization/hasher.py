"""Prompts as token blocks, for models whose engines say exactly what they have cached.

Tokenising runs in a few threads (the tokenizer releases the interpreter's lock) under a budget of time. Whatever goes
wrong, the request is placed by blocks of its text instead: what is lost is a better guess, never the request.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram

from core.errors import PenstockError
from gateway.prefix import PromptBlocks, TextBlockHasher
from gateway.schemas.common import PreparedRequest
from gateway.tokenization.model_tokenizer import ModelTokenizer, PromptTokenizer, TokenizationError
from gateway.tokenization.text_encoder import TokenCache
from scheduler.wire import PoolSnapshot
from workers.token_blocks import TOKEN_BYTES, token_block_hashes
from workers.wire import ReplicaState

TOKENIZER_THREADS = 2
MAX_WAITING = 64
"""Prompts in the threads or before them; more are placed by text."""
MAX_PROMPT_BYTES = 2**20
TIME_BUDGET_S = 0.02
"""Seconds that any prompt may take."""
TIME_BUDGET_PER_BYTE_S = 1e-6
"""Seconds more per byte of it: below a tenth of the prefill that a good choice saves, and beside the hold anyway."""
RETRY_S = 60.0
"""How long a model whose tokenizer cannot be had is placed by text before it is looked for again."""

log = logging.getLogger(__name__)
FindTokenizer = Callable[[str], Path]
"""A directory with a model's tokenizer. Blocks; raises PenstockError, OSError or ValueError when there is none."""


class BlockMetrics:
    """What exact matching costs and how often it falls back."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "penstock_prompt_blocks",
            "Prompts hashed, by what their blocks are made of: tokens, or text and the reason",
            ("model", "kind", "reason"),
            registry=registry,
        )
        self.seconds = Histogram(
            "penstock_prompt_blocks_seconds",
            "Seconds of a thread to hash a prompt",
            ("model", "kind"),
            buckets=(1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0),
            registry=registry,
        )


class _ExactMatching(msgspec.Struct, frozen=True):
    """How a model's prompts are matched exactly."""

    block_tokens: int
    simulated: bool


class TokenBlockHasher:
    """Token blocks where a model's replicas want them, text blocks otherwise.

    `simulated` tokenizes prompts of simulated replicas; without it their prompts are matched as text.
    """

    def __init__(
        self,
        snapshot: Callable[[], PoolSnapshot],
        find_tokenizer: FindTokenizer,
        *,
        metrics: BlockMetrics,
        now: Callable[[], float],
        today: Callable[[], datetime],
        cache: TokenCache | None = None,
        simulated: PromptTokenizer | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._find_tokenizer = find_tokenizer
        self._metrics = metrics
        self._now = now
        self._today = today
        self._cache = cache or TokenCache()
        self._text = TextBlockHasher()
        self._threads: ThreadPoolExecutor | None = None
        self._loader: ThreadPoolExecutor | None = None
        """For downloads, which may take minutes, beside the threads that prompts wait for."""
        self._waiting = 0
        self._tokenizers: dict[str, PromptTokenizer] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._retry_at: dict[str, float] = {}
        self._exact_snapshot: PoolSnapshot | None = None
        self._exact: dict[str, _ExactMatching] = {}
        self._simulated = simulated

    async def start(self) -> None:
        """Have the threads."""
        self._threads = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokens")
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="tokenizers")

    async def close(self) -> None:
        """Let them go."""
        for task in self._loading.values():
            task.cancel()
        for executor in (self._threads, self._loader):
            if executor is not None:
                executor.shutdown(wait=False, cancel_futures=True)

    async def blocks(
        self, model: str, prepared: PreparedRequest, salt: str, *, reasoning: bool
    ) -> PromptBlocks:
        """The blocks of a prompt, of the kind that the model's replicas can match."""
        exact = self._exact_for(model)
        reason = "mirrored"
        if exact is not None:
            try:
                found = await self._token_blocks(model, exact, prepared, salt, reasoning)
                self._metrics.requests.labels(model, "tokens", "").inc()
                return found
            except TokenizationError as error:
                reason = str(error)
        began = self._now()
        found = await self._text.blocks(model, prepared, salt, reasoning=reasoning)
        self._metrics.seconds.labels(model, "text").observe(self._now() - began)
        self._metrics.requests.labels(model, "text", reason).inc()
        return found

    async def _token_blocks(
        self, model: str, exact: _ExactMatching, prepared: PreparedRequest, salt: str, reasoning: bool
    ) -> PromptBlocks:
        """Raises TokenizationError, with the reason, when it cannot be done in time."""
        size = len(prepared.prompt_text)
        if size > MAX_PROMPT_BYTES:
            raise TokenizationError("too_long")
        tokeniser = self._simulated if exact.simulated else self._tokenizer_of(model)
        if tokeniser is None:
            raise TokenizationError("no_tokenizer")
        if self._waiting >= MAX_WAITING or self._threads is None:
            raise TokenizationError("busy")

        budget_s = TIME_BUDGET_S + size * TIME_BUDGET_PER_BYTE_S
        late_at = self._now() + budget_s

        def work() -> PromptBlocks:
            began = self._now()
            if began >= late_at:  # nobody waits any more: do not let those behind wait for it too
                raise TokenizationError("late")
            tokens = tokeniser.tokenize(prepared, salt, reasoning=reasoning)
            hashes = token_block_hashes(tokens, exact.block_tokens, salt)
            self._metrics.seconds.labels(model, "tokens").observe(self._now() - began)
            return PromptBlocks(hashes, exact.block_tokens, len(tokens) // TOKEN_BYTES)

        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        future.add_done_callback(self._on_done)
        done, _ = await asyncio.wait({future}, timeout=budget_s)
        if not done:
            raise TokenizationError("late")
        try:
            return future.result()
        except TokenizationError:
            raise
        except Exception as error:
            log.exception("a prompt for %s could not be tokenised; it is placed by its text", model)
            raise TokenizationError("failed") from error

    def _on_done(self, future: "asyncio.Future[PromptBlocks]") -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # one that came late and failed has nobody else to look at it

    def _tokenizer_of(self, model: str) -> PromptTokenizer:
        """The model's, once it is loaded. Raises TokenizationError until then."""
        known = self._tokenizers.get(model)
        if known is not None:
            return known
        if model not in self._loading and self._now() >= self._retry_at.get(model, 0.0):
            self._loading[model] = asyncio.create_task(self._load(model))
        raise TokenizationError("loading" if model in self._loading else "no_tokenizer")

    async def _load(self, model: str) -> None:
        def load() -> PromptTokenizer:
            return ModelTokenizer(self._find_tokenizer(model), model, self._cache, self._today)

        try:
            self._tokenizers[model] = await asyncio.get_running_loop().run_in_executor(self._loader, load)
        except (PenstockError, OSError, ValueError) as error:
            self._retry_at[model] = self._now() + RETRY_S
            log.warning("no tokenizer for %s, its prompts are placed by their text: %s", model, error)
        finally:
            del self._loading[model]

    def _exact_for(self, model: str) -> _ExactMatching | None:
        """Block size of the model's replicas that publish their caches; they are all started alike."""
        snapshot = self._snapshot()
        if snapshot is not self._exact_snapshot:
            self._exact_snapshot = snapshot
            self._exact = {
                status.model: _ExactMatching(status.block_size, status.simulated)
                for status in snapshot.replicas
                if status.prefix_kind == "tokens"
                and status.block_size > 0
                and status.state is ReplicaState.READY
            }
        return self._exact.get(model)
