"""Token blocks of prompts, for models whose engines publish exactly what they have cached (ADR 14).

Tokenization runs in a few threads, since the tokenizer releases the interpreter's lock, and within a time budget. When
it fails or takes too long, the request is placed by blocks of its text: the prediction of cached tokens is less exact.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram

from core.errors import PenstockError
from gateway.prefix import PromptBlocks, TextBlockHasher
from gateway.schemas.common import PreparedRequest
from gateway.tokenization.model_tokenizer import ModelTokenizer, PromptTokenizer
from gateway.tokenization.text_encoder import TokenCache, TokenizationError
from scheduler.wire import PoolSnapshot
from workers.token_blocks import TOKEN_BYTES, token_block_hashes
from workers.wire import ReplicaState

TOKENIZER_THREADS = 2
"""Threads that tokenize prompts of up to LARGE_PROMPT_BYTES; one further thread tokenizes the longer ones."""
LARGE_PROMPT_BYTES = 64 * 1024
"""Bytes of a prompt from which tokenization takes so long, 0.1 s and more, that shorter ones do not wait behind it."""
MAX_WAITING = 64
"""Short and large prompts each that are tokenized or wait for a thread; further prompts are hashed as text."""
MAX_PROMPT_BYTES = 2**20
"""Bytes of the longest prompt that is tokenized; longer prompts are hashed as text."""
TIME_BUDGET_S = 0.02
"""Seconds that the tokenization of any prompt may take, wait for a thread included."""
TIME_BUDGET_PER_BYTE_S = 1e-6
"""Further seconds per byte of the prompt: less than a tenth of the prefill that a cache hit saves."""
RETRY_S = 60.0
"""Seconds after which a tokenizer that could not be loaded is loaded again."""

log = logging.getLogger(__name__)
T = TypeVar("T")
FindTokenizer = Callable[[str], Path]
"""Returns the directory of a model's tokenizer. Blocks; raises PenstockError, OSError or ValueError without one."""


class BlockMetrics:
    """Metrics of hashing: how many prompts as tokens, how many as text and why, and the time it takes."""

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
    """The parameters of exact matching for one model."""

    block_tokens: int
    simulated: bool


class TokenBlockHasher:
    """Hashes prompts as tokens for models whose replicas publish their caches, and as text for the others.

    `snapshot` returns the live state of the replicas. `now` returns monotonic seconds, `today` the time that chat
    templates print. `simulated` tokenizes the prompts of simulated replicas; without it they are hashed as text.
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
        self._threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor] | None = None
        """For short and for large prompts."""
        self._loader: ThreadPoolExecutor | None = None
        """One thread of its own for loading tokenizers, since a download may take minutes."""
        self._waiting = [0, 0]
        """Short and large prompts that are tokenized or wait for a thread."""
        self._tokenizers: dict[str, PromptTokenizer] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._retry_at: dict[str, float] = {}
        self._exact_snapshot: PoolSnapshot | None = None
        self._exact: dict[str, _ExactMatching] = {}
        self._simulated = simulated

    async def start(self) -> None:
        """Create the threads."""
        self._threads = (
            ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokens"),
            ThreadPoolExecutor(1, thread_name_prefix="large-tokens"),
        )
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="tokenizers")

    async def close(self) -> None:
        """Cancel what is loading and stop the threads."""
        for task in self._loading.values():
            task.cancel()
        for executor in (*(self._threads or ()), self._loader):
            if executor is not None:
                executor.shutdown(wait=False, cancel_futures=True)

    async def blocks(
        self, model: str, prepared: PreparedRequest, salt: str, *, reasoning: bool
    ) -> PromptBlocks:
        """Return the blocks of a prompt, as tokens where possible, else as text. Raises nothing."""
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

    async def count_tokens(
        self, model: str, prepared: PreparedRequest, salt: str, *, reasoning: bool, simulated: bool
    ) -> int:
        """Return the tokens of a prompt as its engine counts them; 0 when they cannot be counted now. Raises nothing.

        There is no time budget: nothing waits for the result.
        """
        try:
            return len(await self.tokens(model, prepared, salt, reasoning, simulated)) // TOKEN_BYTES
        except TokenizationError:
            return 0
        except Exception:
            log.exception("the tokens of a prompt for %s could not be counted", model)
            return 0

    async def tokens(
        self, model: str, prepared: PreparedRequest, salt: str, reasoning: bool, simulated: bool
    ) -> bytes:
        """Return the packed token ids of a prompt as its engine computes them, without a time budget.

        Raises TokenizationError as `run` does, or with the reason no_template, template_failed or several_prompts.
        """
        return await self.run(
            model,
            prepared.prompt_bytes,
            lambda tokenizer: tokenizer.tokenize(prepared, salt, reasoning=reasoning),
            simulated=simulated,
        )

    async def run(self, model: str, size: int, work: Callable[[PromptTokenizer], T], *, simulated: bool) -> T:
        """Run `work` with the model's tokenizer in a thread; `size`: bytes of what it works on.

        Raises what it raises, and TokenizationError, whose text is the reason: too_long, busy, loading or no_tokenizer.
        """
        if size > MAX_PROMPT_BYTES:
            raise TokenizationError("too_long")
        tokenizer = self._simulated if simulated else self._tokenizer_of(model)
        if tokenizer is None or self._threads is None:
            raise TokenizationError("no_tokenizer")
        large = size > LARGE_PROMPT_BYTES
        if self._waiting[large] >= MAX_WAITING:
            raise TokenizationError("busy")
        self._waiting[large] += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads[large], work, tokenizer)
        future.add_done_callback(lambda done: self._on_done(done, large))
        return await future

    async def loaded(self, model: str, wait_s: float) -> None:
        """Wait until the tokenizer of a model that is being loaded is there, at most `wait_s` seconds."""
        with contextlib.suppress(TokenizationError):
            self._tokenizer_of(model)
        if (loading := self._loading.get(model)) is not None:
            await asyncio.wait({loading}, timeout=wait_s)

    async def _token_blocks(
        self, model: str, exact: _ExactMatching, prepared: PreparedRequest, salt: str, reasoning: bool
    ) -> PromptBlocks:
        """Return the token blocks of a prompt. Raises TokenizationError when that is not possible in time."""
        size = prepared.prompt_bytes
        if size > MAX_PROMPT_BYTES:
            raise TokenizationError("too_long")
        tokenizer = self._simulated if exact.simulated else self._tokenizer_of(model)
        if tokenizer is None:
            raise TokenizationError("no_tokenizer")
        large = size > LARGE_PROMPT_BYTES
        if self._waiting[large] >= MAX_WAITING or self._threads is None:
            raise TokenizationError("busy")

        budget_s = TIME_BUDGET_S + size * TIME_BUDGET_PER_BYTE_S
        late_at = self._now() + budget_s

        def work() -> PromptBlocks:
            began = self._now()
            if began >= late_at:  # the request has gone on without it; do not delay the next prompts
                raise TokenizationError("late")
            tokens = tokenizer.tokenize(prepared, salt, reasoning=reasoning)
            hashes = token_block_hashes(tokens, exact.block_tokens, salt)
            self._metrics.seconds.labels(model, "tokens").observe(self._now() - began)
            return PromptBlocks(hashes, exact.block_tokens, len(tokens) // TOKEN_BYTES)

        self._waiting[large] += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads[large], work)
        future.add_done_callback(lambda done: self._on_done(done, large))
        done, _ = await asyncio.wait({future}, timeout=budget_s)
        if not done:
            raise TokenizationError("late")
        try:
            return future.result()
        except TokenizationError:
            raise
        except Exception as error:
            log.exception("a prompt for %s could not be tokenized; it is hashed as text", model)
            raise TokenizationError("failed") from error

    def _on_done(self, future: "asyncio.Future[Any]", large: bool) -> None:
        self._waiting[large] -= 1
        if not future.cancelled():
            future.exception()  # retrieve the exception of a late task, so that asyncio does not log it

    def _tokenizer_of(self, model: str) -> PromptTokenizer:
        """Return the model's tokenizer, or begin to load it. Raises TokenizationError until it is loaded."""
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
            log.warning("no tokenizer for %s, its prompts are hashed as text: %s", model, error)
        finally:
            del self._loading[model]

    def _exact_for(self, model: str) -> _ExactMatching | None:
        """The parameters of the model's replicas that publish their caches, the same for all; None without any."""
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
