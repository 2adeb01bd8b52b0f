"""Sleep and wake of an engine in vLLM's order, and the answer that proves a wake.

Weights that were dropped at level 2 come back in three calls: memory for the weights, the weights, the KV cache. vLLM
accepts other orders and then answers with nonsense (vllm-project/vllm #29341, #16564). So the answer to a fixed prompt
is kept before the first sleep, and each wake has to give it again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from core.clock import Clock
from core.errors import Conflict, EngineFailed
from workers.engine_api import EngineApi, EngineMetrics
from workers.ranks import RANK_HEADER
from workers.wire import EngineCounters

T = TypeVar("T")
SLEEP_TIMEOUT_S = 300.0
WAKE_TIMEOUT_S = 1800.0
"""Seconds that one call of a wake may take: at level 2 hundreds of gigabytes may come from a slow disk."""
PROOF_TIMEOUT_S = 120.0
QUIET_TIMEOUT_S = 60.0
"""Seconds within which an engine must run nothing after requests of the agent."""
POLL_S = 0.1
PROOF_PROMPTS = (
    "The river fills the lake behind the dam, and from there the water runs through the pipe to",
    "def greatest_common_divisor(a: int, b: int) -> int:\n    while b:\n",
    "Q: A train leaves at 9:40 and arrives at 11:15. How many minutes does it take?\nA:",
    "Der Fluss füllt den See hinter dem Damm, und von dort läuft das Wasser durch das Rohr zu",
)
"""The first proves a wake, in as little time as can be. All prove a new version: prose, code, numbers, German."""
PROOF_TOKENS = 8
TIE = 0.3
"""Difference of log-probabilities, in nats, that rounding may cause: two tokens this close may change places."""
MIN_COSINE = 0.99
"""Smallest cosine of two embeddings of one text by the same weights."""


class Proof(msgspec.Struct, frozen=True):
    """An engine's greedy answer to one of PROOF_PROMPTS, or the embedding of that."""

    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Of each token; empty = the engine gives none."""
    margins: tuple[float, ...] = ()
    """By which each token was more probable than the next best, in nats."""
    vector: tuple[float, ...] = ()

    def cosine(self, other: "Proof") -> float:
        """Of their embeddings; 0 for those of different dimensions."""
        return _cosine(self.vector, other.vector)

    def difference(self, other: "Proof") -> str:
        """How `other` shows different weights, as a clause; empty when it does not."""
        if self.vector or other.vector:
            cosine = self.cosine(other)
            return (
                ""
                if cosine >= MIN_COSINE
                else f"its embedding has the cosine {cosine:.3f} to the earlier one"
            )
        if len(self.tokens) != len(other.tokens):
            return f"its answer has {len(other.tokens)} tokens, not {len(self.tokens)}"
        for place, (mine, theirs) in enumerate(zip(self.tokens, other.tokens, strict=True)):
            if mine != theirs:
                tie = place < len(self.margins) and self.margins[place] < TIE
                return "" if tie else f"token {place + 1} of its answer is {theirs!r}, not {mine!r}"
            if place < min(len(self.logprobs), len(other.logprobs)):
                moved = abs(self.logprobs[place] - other.logprobs[place])
                if not moved <= TIE:
                    return f"the log-probability of token {place + 1} of its answer moved by {moved:.2f}"
        return ""


def difference(before: Sequence[Proof], now: Sequence[Proof]) -> str:
    """How proofs show other weights than those of before, as a clause; empty = they do not.

    `now` may be the proofs of fewer prompts.
    """
    for old, new in zip(before, now, strict=False):
        if why := old.difference(new):
            return why
    return ""


async def put_to_sleep(api: EngineApi, level: int) -> None:
    """Put an idle engine to sleep. Raises Conflict when it has no sleep mode, EngineFailed when it fails."""
    path = f"/sleep?level={level}&mode=wait"  # a request that came late ends first: sleep while busy breaks the engine
    status, _ = await api.post(path, timeout_s=SLEEP_TIMEOUT_S)
    if status == 404:
        raise Conflict("the engine was not started with sleep mode (--enable-sleep-mode)")
    if status != 200:
        raise EngineFailed(f"the engine answered {status} to /sleep")


async def wake_up(api: EngineApi, level: int) -> None:
    """Wake an engine that sleeps at `level`. Raises EngineFailed when a step fails."""
    if level == 1:
        await _step(api, "/wake_up")
        return
    await _step(api, "/wake_up?tags=weights")
    await _step(api, "/collective_rpc", {"method": "reload_weights"})
    await _step(api, "/wake_up?tags=kv_cache")


async def _step(api: EngineApi, path: str, body: dict[str, object] | None = None) -> None:
    status, answer = await api.post(path, body, timeout_s=WAKE_TIMEOUT_S)
    if status != 200:
        raise EngineFailed(
            f"the engine answered {status} to {path}: {answer[:200].decode('utf-8', 'replace')}"
        )


class _TopLogprobs(msgspec.Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    text: str = ""
    token_ids: list[int] | None = None
    logprobs: _TopLogprobs | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class _Embedding(msgspec.Struct):
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


async def proofs_of(
    api: EngineApi, model: str, prompts: Sequence[str], *, embeds: bool, ranks: int = 1
) -> list[Proof]:
    """The proofs of each rank, of which there is at least one, for the first prompt, then for the next.

    Raises EngineFailed.
    """
    of_ranks: list[dict[str, str]] = (
        [{RANK_HEADER: str(rank)} for rank in range(ranks)] if ranks > 1 else [{}]
    )
    return [await _proof(api, model, prompt, embeds, headers) for prompt in prompts for headers in of_ranks]


async def _proof(api: EngineApi, model: str, prompt: str, embeds: bool, headers: Mapping[str, str]) -> Proof:
    if embeds:
        body: dict[str, object] = {"model": model, "input": prompt}
        answer = _decoded(await _ask(api, "/v1/embeddings", body, headers), _Embeddings)
        return Proof(vector=tuple(answer.data[0].embedding))
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": PROOF_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "logprobs": 2,
        "return_token_ids": True,
    }
    choice = _decoded(await _ask(api, "/v1/completions", body, headers), _Completion).choices[0]
    said = choice.logprobs or _TopLogprobs()
    ids = [str(token) for token in choice.token_ids or ()]
    tops = [sorted(top.values(), reverse=True) for top in said.top_logprobs or () if top]
    return Proof(
        tuple(ids or said.tokens or [choice.text]),
        tuple(value for value in said.token_logprobs if value is not None),
        tuple(top[0] - top[1] for top in tops if len(top) > 1),
    )


async def _ask(api: EngineApi, path: str, body: dict[str, object], headers: Mapping[str, str]) -> bytes:
    status, answer = await api.post(path, body, timeout_s=PROOF_TIMEOUT_S, headers=headers)
    if status != 200:
        raise EngineFailed(f"{path} answered {status}: {answer[:200].decode('utf-8', 'replace')}")
    return answer


def _decoded(answer: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=shape)
    except msgspec.MsgspecError as error:
        raise EngineFailed(f"the engine's answer cannot be read: {error}") from None


def _cosine(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    if len(one) != len(other):
        return 0.0
    norm = sum(x * x for x in one) * sum(y * y for y in other)
    return sum(x * y for x, y in zip(one, other, strict=True)) / norm**0.5 if norm > 0.0 else 0.0


async def quiet(api: EngineApi, clock: Clock) -> tuple[EngineMetrics, float]:
    """The metrics once the engine runs nothing and its counters stand still, and when they were asked for.

    Raises EngineFailed when it still works after QUIET_TIMEOUT_S.
    """
    deadline = clock.monotonic() + QUIET_TIMEOUT_S
    before: EngineCounters | None = None
    while True:
        began = clock.monotonic()
        metrics = await api.metrics()
        left = metrics.running + metrics.waiting
        if not left and metrics.counters == before:
            return metrics, began
        before = metrics.counters
        if began >= deadline:
            raise EngineFailed(
                f"the engine still works {QUIET_TIMEOUT_S:.0f} s after the agent's requests, with {left} requests"
            )
        await asyncio.sleep(POLL_S)
