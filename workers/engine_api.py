"""Client of an engine's HTTP API for the agent: health, metrics, warm-up. Sleep and wake are in engine_sleep.py."""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from itertools import product

import aiohttp
import msgspec

from core.errors import EngineFailed
from workers.engine_guard import KEY_HEADER
from workers.ranks import MAX_RANKS, RANK_HEADER
from workers.wire import EngineCounters, RankStatus

_LINE = re.compile(r"^(vllm:[a-z_]+|penstock_simulated)(?:\{(.*)\})? ([0-9.eE+-]+|NaN|\+Inf)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_VERSION = re.compile(r'"version"\s*:\s*"v?(\d+)\.(\d+)')
_WARMUP_WORDS = "The water runs from the lake through the pipe and turns the wheel. "
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_SCHEMA_TIMEOUT = aiohttp.ClientTimeout(total=30.0)
"""An engine computes its schema when it is first asked for it."""
_WARMUP_TIMEOUT = aiohttp.ClientTimeout(total=300.0)
_FEATURES_WARMUP_S = 120.0
"""Seconds for all warm-up requests of features together; the engine is ready without those that take longer."""
_WARMUP_SCHEMA = {
    "type": "object",
    "properties": {"open": {"type": "boolean"}},
    "required": ["open"],
    "additionalProperties": False,
}

log = logging.getLogger(__name__)


class EngineMetrics(msgspec.Struct, frozen=True):
    """The values of one scrape of /metrics."""

    running: int = 0
    """Running requests."""
    waiting: int = 0
    """Waiting requests."""
    kv_usage: float = 0.0
    """Share of the KV cache in use, 0 to 1."""
    counters: EngineCounters = EngineCounters()
    block_size: int = 0
    """Tokens per KV block; 0 = not reported."""
    kv_blocks: int = 0
    """KV blocks of the cache; 0 = not reported."""
    simulated: bool = False
    sleep_level: int = 0
    """1 or 2 while the engine sleeps."""
    ranks: tuple[RankStatus, ...] = ()
    """The values by rank, of an engine that labels them with several."""

    def of_ranks(self, count: int) -> list[RankStatus]:
        """The values of `count` ranks; of those that the scrape does not have, the values of an idle one."""
        return [self.ranks[rank] if rank < len(self.ranks) else RankStatus() for rank in range(count)]


_KV_USAGE = "vllm:kv_cache_usage_perc"
_SLEEP_LEVELS = {"weights_offloaded": 1, "discard_all": 2}
"""Values of vLLM's label `sleep_state`."""


def parse_metrics(text: str) -> EngineMetrics:
    """Parse vLLM's Prometheus text.

    Values of several engine cores (ranks of attention data parallelism) are summed; `kv_usage` is their maximum. vLLM
    states the KV blocks of all cores together beside each of them (v1/engine/core_client.py sums them, 0.32), so each
    has its part of that.
    """
    sums: dict[tuple[int, str], float] = {}
    """By rank and name."""
    blocks: dict[int, int] = {}
    """KV blocks of all ranks, as each rank states them."""
    simulated = False
    sleep_level = block_size = 0
    for name, labelled, value in _LINE.findall(text):
        labels = dict(_LABEL.findall(labelled))
        rank = min(_whole(labels.get("engine", "")), MAX_RANKS)
        if name == "vllm:cache_config_info":
            block_size = _whole(labels.get("block_size", ""))
            blocks[rank] = _whole(labels.get("num_gpu_blocks", ""))
            continue
        if name == "vllm:engine_sleep_state":
            if float(value) > 0:
                sleep_level = max(sleep_level, _SLEEP_LEVELS.get(labels.get("sleep_state", ""), 0))
            continue
        simulated = simulated or (name == "penstock_simulated" and float(value) > 0)
        key, added = (rank, name), float(value)
        sums[key] = max(sums.get(key, 0.0), added) if name == _KV_USAGE else sums.get(key, 0.0) + added
    for rank, total in blocks.items():
        sums[rank, "vllm:cache_config_info"] = float(total // len(blocks))
    ranks = tuple(_rank_status(sums, rank) for rank in range(1 + max((rank for rank, _ in sums), default=0)))
    return EngineMetrics(
        running=sum(rank.running for rank in ranks),
        waiting=sum(rank.waiting for rank in ranks),
        kv_usage=max(rank.kv_usage for rank in ranks),
        counters=EngineCounters(
            *(
                sum(getattr(rank.counters, field) for rank in ranks)
                for field in EngineCounters.__struct_fields__
            )
        ),
        block_size=block_size,
        kv_blocks=sum(rank.kv_blocks for rank in ranks),
        simulated=simulated,
        sleep_level=sleep_level,
        ranks=ranks if len(ranks) > 1 else (),
    )


def _rank_status(sums: Mapping[tuple[int, str], float], rank: int) -> RankStatus:
    """The values of one rank."""

    def of(name: str) -> float:
        return sums.get((rank, f"vllm:{name}"), 0.0)

    return RankStatus(
        running=int(of("num_requests_running")),
        waiting=int(of("num_requests_waiting")),
        kv_usage=of("kv_cache_usage_perc"),
        kv_blocks=int(of("cache_config_info")),
        counters=EngineCounters(
            prompt_tokens=int(of("prompt_tokens_total")),
            generation_tokens=int(of("generation_tokens_total")),
            cached_prompt_tokens=int(of("prompt_tokens_cached_total")),
            preemptions=int(of("num_preemptions_total")),
            drafts=int(of("spec_decode_num_drafts_total")),
            accepted_tokens=int(of("spec_decode_num_accepted_tokens_total")),
        ),
    )


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0


class AnswerUsage(msgspec.Struct, frozen=True):
    """The tokens of an answer, as the engine counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(msgspec.Struct, frozen=True):
    usage: AnswerUsage = AnswerUsage()


def _warm_up_chat(model: str) -> dict[str, object]:
    """A short chat, as a stream with running usage counts."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": _WARMUP_WORDS}],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


class EngineApi:
    """HTTP client of one engine. Every method raises EngineFailed when the engine cannot be reached."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str, agent_key: str = "") -> None:
        """`agent_key` opens what the engine's guard reserves to the agent (workers/engine_guard.py)."""
        self.url = url
        self._session = session
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        if agent_key:
            self._headers[KEY_HEADER] = agent_key

    @property
    def has_key(self) -> bool:
        """Whether requests carry an API key."""
        return "Authorization" in self._headers

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET."""
        return await self._call("GET", path)

    async def post(
        self,
        path: str,
        body: dict[str, object] | None = None,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Status and body of a POST that may take `timeout_s` seconds."""
        return await self._call("POST", path, body, aiohttp.ClientTimeout(total=timeout_s), headers)

    async def healthy(self) -> bool:
        """GET /health: False when the engine reports itself unhealthy."""
        status, _ = await self._call("GET", "/health")
        return status == 200

    async def metrics(self) -> EngineMetrics:
        """GET /metrics; the values of an idle engine when it has no such path, as external engines may."""
        status, body = await self._call("GET", "/metrics")
        return parse_metrics(body.decode("utf-8", "replace")) if status == 200 else EngineMetrics()

    async def takes_stream_interval(self) -> bool:
        """Whether requests may carry `stream_interval` (vLLM 0.32 and later).

        By the engine's published schema, or by its version when it publishes none. False when it cannot be reached.
        """
        try:
            status, body = await self._call("GET", "/openapi.json", timeout=_SCHEMA_TIMEOUT)
            if status == 200:
                return b'"stream_interval"' in body
            status, body = await self._call("GET", "/version")
        except EngineFailed:
            return False
        found = _VERSION.search(body.decode("utf-8", "replace")) if status == 200 else None
        return found is not None and (int(found[1]), int(found[2])) >= (0, 32)

    async def answer(
        self, model: str, text: str, tokens: int, timeout_s: float, *, whole: bool = False
    ) -> AnswerUsage:
        """Have `text` answered with at most `tokens`, in one piece; exactly as many with `whole` (`ignore_eos`).

        Raises EngineFailed when it is not, in time.
        """
        messages = [{"role": "user", "content": text}]
        body = {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0}
        if whole:
            body["ignore_eos"] = True
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        status, answer = await self._call("POST", "/v1/chat/completions", body, timeout)
        if status != 200:
            raise EngineFailed(f"the engine answered {status}: {answer[:200].decode('utf-8', 'replace')}")
        try:
            return msgspec.json.decode(answer, type=_Answer).usage
        except msgspec.MsgspecError as error:
            raise EngineFailed(f"the engine's answer is not one of a chat: {error}") from None

    async def warm_up(self, model: str, max_model_len: int, *, embeds: bool = False, ranks: int = 1) -> None:
        """Send requests of several lengths, so that compilation does not delay the first customer's request.

        `max_model_len` in tokens bounds their lengths. `embeds`: whether the model gives embeddings, and nothing else.
        With several `ranks` each gets all requests, because each is a process that compiles for itself. Raises
        EngineFailed when the engine refuses one.
        """
        of_ranks: list[dict[str, str]] = (
            [{RANK_HEADER: str(rank)} for rank in range(ranks)] if ranks > 1 else [{}]
        )
        long = max(1, min(max_model_len // 4, 1024) // 16)
        for headers in of_ranks:
            if embeds:
                for words in (1, long):
                    body: dict[str, object] = {"model": model, "input": _WARMUP_WORDS * words}
                    await self._generate("/v1/embeddings", body, headers)
                continue
            for words, answer in ((1, 4), (long, 16)):
                prompt = _WARMUP_WORDS * words
                body = {"model": model, "prompt": prompt, "max_tokens": answer, "temperature": 0}
                await self._generate("/v1/completions", body, headers)
            await self._generate("/v1/chat/completions", _warm_up_chat(model), headers)
        if not embeds:
            await self._warm_features(model, of_ranks)

    async def _warm_features(self, model: str, of_ranks: Sequence[Mapping[str, str]]) -> None:
        """Use what loads or compiles at its first use: log-probabilities and structured answers.

        An engine that has a feature not, or is slow with it, is ready all the same. `of_ranks` has the headers of each
        rank.
        """
        schema = {"name": "valve", "schema": _WARMUP_SCHEMA}
        features: tuple[dict[str, object], ...] = (
            {"logprobs": True, "top_logprobs": 5},
            {"response_format": {"type": "json_schema", "json_schema": schema}, "max_tokens": 16},
        )
        try:
            async with asyncio.timeout(_FEATURES_WARMUP_S):
                for headers, feature in product(of_ranks, features):
                    body = {**_warm_up_chat(model), **feature}
                    try:
                        await self._generate("/v1/chat/completions", body, headers)
                    except EngineFailed as error:
                        log.warning("not warmed up: %s: %s", ", ".join(feature), error.message)
        except TimeoutError:
            log.warning("features not warmed up within %.0f s", _FEATURES_WARMUP_S)

    async def _generate(self, path: str, body: dict[str, object], headers: Mapping[str, str]) -> None:
        status, answer = await self._call("POST", path, body, _WARMUP_TIMEOUT, headers)
        if status != 200:
            raise EngineFailed(
                f"warm-up: {path} answered {status}: {answer[:200].decode('utf-8', 'replace')}"
            )

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, object] | None = None,
        timeout: aiohttp.ClientTimeout = _TIMEOUT,
        further: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        data = msgspec.json.encode(body) if body is not None else None
        headers = {**self._headers, **(further or {})}
        if data:
            headers["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method, self.url + path, data=data, headers=headers, timeout=timeout
            ) as answer:
                return answer.status, await answer.read()
        except TimeoutError:
            raise EngineFailed(f"{path} did not answer in time") from None
        except aiohttp.ClientError as error:
            raise EngineFailed(f"{path} cannot be reached: {error}") from None
